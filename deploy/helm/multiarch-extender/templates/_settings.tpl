{{/* The service's configuration file of a part: the settings, each with its comment if it has one. */}}

{{/* Settings of the operator for a part. */}}
{{- define "multiarch.settings.own" -}}
{{ mergeOverwrite (deepCopy .root.Values.config) (deepCopy .values.config) | toYaml }}
{{- end }}

{{- define "multiarch.settings" -}}
{{- $values := .root.Values -}}
{{- $own := include "multiarch.settings.own" . | fromYaml -}}
{{- $base := dict "registry" (dict "pull_secrets" false) -}}
{{- $chart := dict "admission" dict -}}
{{- if eq .mode "webhook" -}}
{{- $_ := set $base "admission" (dict "node_affinity" "required" "scheduler_name" "") -}}
{{- $_ := set $chart "scheduler" (dict "listen" "") -}}
{{- else if eq .mode "policy" -}}
{{- $_ := set $base "admission" (dict "node_affinity" "required") -}}
{{- $_ := set $chart "scheduler" (dict "listen" "") -}}
{{- else if eq .mode "secondScheduler" -}}
{{- $_ := set $base "scheduler" (dict "pending" "retry") -}}
{{- if .values.webhook -}}
{{- $_ := set $base "admission" (dict "node_affinity" "required") -}}
{{- $_ := set $chart "admission" (dict "scheduler_name" .values.schedulerName) -}}
{{- end -}}
{{- else -}}
{{- $_ := set $base "scheduler" (dict "pending" "assume" "assume" (list "linux/amd64")) -}}
{{- end -}}
{{- if include "multiarch.has-webhook" . -}}
{{- $_ := set $chart.admission "listen" (printf ":%d" (int $values.webhook.port)) -}}
{{- if eq $values.certificates.source "selfManaged" -}}
{{- $_ := set $chart.admission "tls" (dict "self_managed" true) -}}
{{- $_ := set $chart.admission "self_managed" (include "multiarch.settings.identity" . | fromYaml) -}}
{{- else -}}
{{- $tls := dict "certificate" "/etc/multiarch-extender-tls/tls.crt" "key" "/etc/multiarch-extender-tls/tls.key" -}}
{{- $_ := set $chart.admission "tls" $tls -}}
{{- end -}}
{{- if $values.webhook.clientCaSecret -}}
{{- $_ := set $chart.admission.tls "client_ca" "/etc/multiarch-extender-client-ca/ca.crt" -}}
{{- end -}}
{{- if and (include "multiarch.has-workloads" .) (eq .values.workloads "guard") -}}
{{- $_ := set $chart.admission "guard_daemon_sets" true -}}
{{- end -}}
{{- else -}}
{{- $_ := set $chart.admission "listen" "" -}}
{{- end -}}
{{- if include "multiarch.has-canary" . -}}
{{- $_ := set $chart.admission "canary_namespace" (include "multiarch.canary" .) -}}
{{- end -}}
{{- if or (include "multiarch.has-policy" .) (include "multiarch.shares-gates" .) -}}
{{- $_ := set $chart.admission "unknown" "gate" -}}
{{- end -}}
{{- if include "multiarch.lets-go" . -}}
{{- $gate := dict "lease" (include "multiarch.gates.lease" .) -}}
{{- with $values.gates.exemptPriorityClasses }}{{- $_ := set $gate "exempt_priority_classes" . -}}{{- end -}}
{{- if include "multiarch.arms" . }}{{- $_ := set $gate "policy" (include "multiarch.gate.policy" .root) -}}{{- end -}}
{{- $_ := set $chart.admission "gate" $gate -}}
{{- end -}}
{{- $cache := dict -}}
{{- if eq $values.store.kind "memory" -}}
{{- $_ := set $cache "url" "memory:" -}}
{{- else if eq $values.store.kind "redis" -}}
{{- $_ := set $cache "url" (include "multiarch.redis" $values.store.redis) -}}
{{- end -}}
{{- if $values.store.keySecret -}}
{{- $_ := set $cache "key_file" "/etc/multiarch-extender-key/key" -}}
{{- end -}}
{{- if $cache -}}{{- $_ := set $chart "cache" $cache -}}{{- end -}}
{{- $registry := dict -}}
{{- if $values.registries.caConfigMap -}}
{{- $files := list -}}
{{- range $values.registries.caKeys -}}{{- $files = append $files (printf "/etc/multiarch-extender-ca/%s" .) -}}{{- end -}}
{{- $_ := set $registry "ca_files" $files -}}
{{- end -}}
{{- if $values.registries.hosts -}}
{{- $_ := set $registry "mirrors" "/etc/multiarch-extender-hosts" -}}
{{- end -}}
{{- if $values.registries.dockerConfigSecret -}}
{{- $_ := set $registry "docker_config" "/etc/multiarch-extender-docker/config.json" -}}
{{- end -}}
{{- if $registry -}}{{- $_ := set $chart "registry" $registry -}}{{- end -}}
{{ mergeOverwrite $base $own $chart | toYaml }}
{{- end }}

{{/* Names in admission.self_managed. */}}
{{- define "multiarch.settings.identity" -}}
{{- $name := include "multiarch.name" . -}}
{{- $identity := dict "secret" (print $name "-identity") -}}
{{- $_ := set $identity "configurations" (include "multiarch.configurations" . | fromYamlArray) -}}
{{- $_ := set $identity "names" (prepend (values (include "multiarch.host" . | fromYaml)) $name) -}}
{{ toYaml $identity }}
{{- end }}

{{- define "multiarch.redis" -}}
{{- $options := list -}}
{{- if .passwordSecret }}{{ $options = append $options "password_file=/etc/multiarch-extender-redis/password" }}{{ end -}}
{{- if .caSecret }}{{ $options = append $options "ca_file=/etc/multiarch-extender-redis-ca/ca.crt" }}{{ end -}}
{{- if .tls }}rediss{{ else }}redis{{ end }}://{{ if .username }}{{ urlquery .username }}@{{ end }}{{ .address }}/0
{{- if $options }}?{{ join "&" $options }}{{ end }}
{{- end }}

{{/* What a reader of the file should know, by part and setting. */}}
{{- define "multiarch.comments" -}}
webhook:
  scheduler.listen: Nobody asks the scheduler verbs here.
  admission.node_affinity: What the images allow, where schedulers, autoscalers and preemption see it.
  admission.scheduler_name: |
    Name a scheduler here and every pod the webhook sends goes to it that names no other: select the namespaces by a
    label first (namespaceSelector of the webhook), as the second scheduler does.
  admission.canary_namespace: Where dry runs show that the API server reaches the webhook.
  {{- if .root.Values.modes.policy.enabled }}
  admission.unknown: A policy holds each new pod; the webhook lets it go at once where its images are known.
  {{- end }}
policy:
  scheduler.listen: Nobody asks the scheduler verbs here.
  admission.canary_namespace: Where dry runs show that the policy works, before it is in force.
  admission.listen: There is no webhook. A policy of the API server holds each new pod.
  admission.node_affinity: What the images allow, where schedulers, autoscalers and preemption see it.
  admission.unknown: The service lets held pods go, once their images are known.
secondScheduler:
  scheduler.pending: |
    An image not known yet: the answer is an error, and kube-scheduler comes back in 1-10 s. Right with
    `ignorable: false` only (scheduler.yaml below). After 30 s, and where a registry
    denies the image, scheduler.unknown decides: its default `pass` places the pod by what is known of its other
    images; `unknown: retry` has it wait for good.
  admission.node_affinity: |
    What the images allow, where autoscalers, preemption and the scheduler itself see it; the extender remains as
    the check of pods that the webhook missed.
  admission.scheduler_name: |
    For every pod the webhook sends that names no other scheduler. Which pods these are is the webhook's
    namespaceSelector.
  admission.canary_namespace: Where dry runs show that the API server reaches the webhook.
  {{- if include "multiarch.shares-gates" . }}
  admission.unknown: What holds pods elsewhere holds those of its namespaces too, and this webhook leaves them held.
  {{- end }}
defaultScheduler:
  scheduler.pending: |
    An image not known yet is taken to run on `assume`: the extender's entry is ignorable, and kube-scheduler takes
    an error (`retry`) for an outage, in which every node passes. An image that is really arm64-only is kept off
    arm64 until it is known; `pass` would place it anywhere instead. A pod that still waits after
    30 s, and one whose registry denies its image, go by scheduler.unknown: pass.
  admission.listen: The webhook is not here; it runs in pods of its own.
{{- end }}

{{- define "multiarch.settings.file" -}}
# The service. `multiarch-extender config` prints every setting. Read at start only: kubectl rollout restart.
{{- $comments := get (include "multiarch.comments" . | fromYaml) .mode }}
{{- $_ := set $comments "registry.pull_secrets" "Whose pull secrets are read, which takes the right to get Secrets: true, or a list of namespaces." }}
{{- range $section, $settings := include "multiarch.settings" . | fromYaml }}
{{- if kindIs "map" $settings }}
{{ $section }}:
{{- range $name, $value := $settings }}
{{- with get $comments (printf "%s.%s" $section $name) }}
{{- range splitList "\n" (trim .) }}
  # {{ . }}
{{- end }}
{{- end }}
{{ dict $name $value | toYaml | indent 2 }}
{{- end }}
{{- else }}
{{ dict $section $settings | toYaml }}
{{- end }}
{{- end }}
{{- end }}
