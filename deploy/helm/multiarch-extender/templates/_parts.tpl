{{/* The parts that run, each with all that templates ask about it. They are computed once, and kept as `parts` of the top
context, with `gatesLease`, `gatePolicy`, and `holds`: whether the API server may hold pods. */}}

{{- define "multiarch.parts" -}}
{{- if not (hasKey . "parts") -}}
{{- $root := . -}}
{{- $values := .Values -}}
{{- $modes := $values.modes -}}
{{- $fullname := include "multiarch.fullname" . -}}
{{- $unknown := dig "admission" "unknown" "pass" $values.config -}}
{{- $gating := or $modes.policy.enabled (eq $unknown "gate") -}}
{{- $parts := list -}}
{{- $suffixes := dict "webhook" "webhook" "policy" "policy" "secondScheduler" "scheduler" "defaultScheduler" "default-scheduler" -}}
{{- range $mode := list "webhook" "policy" "defaultScheduler" "secondScheduler" -}}
{{- $own := get $modes $mode -}}
{{- if and $own.enabled (not (and (eq $mode "policy") $modes.webhook.enabled)) -}}
{{- $name := printf "%s-%s" $fullname (get $suffixes $mode) -}}
{{- $isScheduler := has $mode (list "secondScheduler" "defaultScheduler") -}}
{{- $webhook := or (eq $mode "webhook") (and (eq $mode "secondScheduler") $own.webhook) -}}
{{- $policy := and $modes.policy.enabled (has $mode (list "webhook" "policy")) -}}
{{- $selector := $values.namespaceSelector -}}
{{- if eq $mode "secondScheduler" -}}
{{- $selector = dict "matchExpressions" (list (dict "key" "multiarch-extender.io/scheduler" "operator" "In" "values" (list $own.schedulerName))) -}}
{{- end -}}
{{- $pods := omit $values "overrides" -}}
{{- if eq $mode "defaultScheduler" -}}{{/* wherever kube-scheduler runs, whatever the node is tainted with: it is needed before others are */}}
{{- $everywhere := dict "nodeSelector" dict "affinity" dict "topologySpreadConstraints" list "tolerations" (list (dict "operator" "Exists")) -}}
{{- $_ := set $everywhere "strategy" (dict "type" "RollingUpdate" "rollingUpdate" (dict "maxUnavailable" 1)) -}}
{{- range $each, $value := $everywhere }}{{ $_ := set $pods $each $value }}{{ end -}}
{{- end -}}
{{- $pods = mergeOverwrite (deepCopy $pods) (deepCopy (get $values.overrides $mode | default dict)) -}}
{{- $part := dict "root" $root "mode" $mode "values" $own "name" $name "component" (kebabcase $mode) "selector" $selector "pods" $pods -}}
{{- $_ := set $part "account" ($pods.serviceAccount.name | default $name) -}}
{{- $_ := set $part "webhook" $webhook -}}
{{- $_ := set $part "policy" $policy -}}
{{- $_ := set $part "scheduler" $isScheduler -}}
{{- $_ := set $part "gates" (and $gating (or $webhook $policy)) -}}
{{- $_ := set $part "selfManaged" (and $webhook (eq $values.certificates.source "selfManaged")) -}}
{{- $_ := set $part "workloads" (and (eq $mode "webhook") (not (has (toString $own.workloads) (list "off" "false")))) -}}
{{- $_ := set $part "hostNetwork" (or (eq $mode "defaultScheduler") (and $webhook $values.webhook.hostNetwork)) -}}
{{- $parts = append $parts $part -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "parts" $parts -}}
{{- $_ := set . "gatesLease" (print $fullname "-held-pods") -}}
{{- $_ := set . "gatePolicy" (print $fullname "-gate") -}}
{{- $holds := false -}}
{{- range $parts }}{{ if .gates }}{{ $holds = true }}{{ end }}{{ end -}}
{{- $_ := set . "holds" $holds -}}
{{- if and $parts (not $holds) (include "multiarch.has-held" .) }}{{ $_ := set (first $parts) "gates" true }}{{ end -}}
{{- range $parts }}{{ $_ := set . "settings" (include "multiarch.settings" . | fromYaml) }}{{ include "multiarch.facts" . }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Whether the release has ever held pods, as its Lease in the cluster says: once there it is in every revision, and with it
the right to remove gates. Empty if not. */}}
{{- define "multiarch.has-held" -}}
{{- if .Release.IsUpgrade -}}
{{- if lookup "coordination.k8s.io/v1" "Lease" .Release.Namespace .gatesLease }}true{{ end -}}
{{- end -}}
{{- end }}

{{/* A part's settings: what the chart decides, over the operator's, over what its mode takes. */}}
{{- define "multiarch.settings" -}}
{{- $values := .root.Values -}}
{{- $etc := "/etc/multiarch-extender" -}}
{{- $base := dict "registry" (dict "pull_secrets" false) -}}
{{- if or .webhook .policy }}{{ $_ := set $base "admission" (dict "node_affinity" "required") }}{{ end -}}
{{- if eq .mode "secondScheduler" }}{{ $_ := set $base "scheduler" (dict "pending" "retry") }}{{ end -}}
{{- if eq .mode "defaultScheduler" -}}
{{- $_ := set $base "scheduler" (dict "pending" "assume" "assume" (list "linux/amd64")) -}}
{{- end -}}
{{- $admission := dict "listen" "" -}}
{{- if .webhook -}}
{{- $_ := set $admission "listen" (printf ":%d" (int $values.webhook.port)) -}}
{{- $tls := dict "certificate" (print $etc "-tls/tls.crt") "key" (print $etc "-tls/tls.key") -}}
{{- if .selfManaged -}}
{{- $tls = dict "self_managed" (prepend (values (include "multiarch.host" .root | fromYaml)) .name) -}}
{{- end -}}
{{- if $values.webhook.clientCaSecret }}{{ $_ := set $tls "client_ca" (print $etc "-client-ca/ca.crt") }}{{ end -}}
{{- $_ := set $admission "tls" $tls -}}
{{- if and .workloads (eq .values.workloads "guard") }}{{ $_ := set $admission "guard_daemon_sets" true }}{{ end -}}
{{- if eq .mode "secondScheduler" }}{{ $_ := set $admission "scheduler_name" .values.schedulerName }}{{ end -}}
{{- end -}}
{{- if and .gates .root.holds -}}
{{- $_ := set $admission "unknown" "gate" -}}
{{- else if eq "gate" (dig "admission" "unknown" "" $values.config) -}}
{{- $_ := set $admission "unknown" "pass" -}}
{{- end -}}
{{- if .gates -}}
{{- $gate := dict "lease" .root.gatesLease -}}
{{- if .policy -}}
{{- $_ := set $gate "policy" .root.gatePolicy -}}
{{- $_ := set $gate "probe_namespace" (include "multiarch.probe.namespace" .root) -}}
{{- end -}}
{{- $_ := set $admission "gate" $gate -}}
{{- end -}}
{{- $registry := dict -}}
{{- if $values.registries.caConfigMap }}{{ $_ := set $registry "ca_files" (list (print $etc "-ca/ca.crt")) }}{{ end -}}
{{- if $values.registries.hosts }}{{ $_ := set $registry "mirrors" (print $etc "-hosts") }}{{ end -}}
{{- if $values.registries.dockerConfigSecret }}{{ $_ := set $registry "docker_config" (print $etc "-docker/config.json") }}{{ end -}}
{{- $chart := dict "admission" $admission "registry" $registry -}}
{{- if not .scheduler }}{{ $_ := set $chart "scheduler" (dict "listen" "") }}{{ end -}}
{{- if $values.store.keySecret }}{{ $_ := set $chart "cache" (dict "key_file" (print $etc "-key/key")) }}{{ end -}}
{{ mergeOverwrite $base (deepCopy $values.config) $chart | toYaml }}
{{- end }}

{{/* Sets what files/rights.yaml asks of a part: `facts` by its words for when, `namespaces` and `names` by those for where and
which. */}}
{{- define "multiarch.facts" -}}
{{- $secrets := .settings.registry.pull_secrets -}}
{{- $facts := dict "always" true "scheduler" .scheduler "webhook" .webhook -}}
{{- $_ := set $facts "gates" .gates -}}
{{- $_ := set $facts "policy" .policy -}}
{{- $_ := set $facts "secrets" (and $secrets (kindIs "bool" $secrets)) -}}
{{- $_ := set $facts "secretsOfNamespaces" (kindIs "slice" $secrets) -}}
{{- $_ := set $facts "selfManaged" .selfManaged -}}
{{- $_ := set . "facts" $facts -}}
{{- $listed := list -}}
{{- if kindIs "slice" $secrets }}{{ $listed = uniq $secrets }}{{ end -}}
{{- $_ := set . "namespaces" (dict "" (list "") "own" (list .root.Release.Namespace) "probe" (list (include "multiarch.probe.namespace" .root)) "listed" $listed) -}}
{{- $names := dict "lease" (list .root.gatesLease) "policy" (list .root.gatePolicy) -}}
{{- $_ := set . "names" (merge $names (dict "identity" (list (print .name "-identity")) "configuration" (list .name))) -}}
{{- end }}

{{/* The host of webhook.url, for certificates: a map with `dns` or `ip`. */}}
{{- define "multiarch.host" -}}
{{- with .Values.webhook.url -}}
{{- $host := (urlParse .).hostname -}}
{{ dict (ternary "ip" "dns" (regexMatch "^[0-9.]+$|:" $host)) $host | toYaml }}
{{- end -}}
{{- end }}

{{/* Namespaces whose pods are never touched, as the values of an expression. */}}
{{- define "multiarch.never" -}}
{{ concat (list "kube-system" "kube-node-lease" "kube-public" .Release.Namespace) .Values.webhook.excludeNamespaces | uniq | join ", " }}
{{- end }}

{{/* The namespace of dry runs, as far as values say that it is served; empty if none is known. */}}
{{- define "multiarch.probe.namespace" -}}
{{- $isDefault := not (or .Values.namespaceSelector (has "default" .Values.webhook.excludeNamespaces)) -}}
{{ .Values.probeNamespace | default (ternary "default" "" $isDefault) }}
{{- end }}

{{/* A namespaceSelector with the names that are never touched: a dict of root and selector. */}}
{{- define "multiarch.namespaces" -}}
{{- with .selector.matchLabels }}
matchLabels:
  {{- toYaml . | nindent 2 }}
{{- end }}
matchExpressions:
{{- with .selector.matchExpressions }}
{{ toYaml . }}
{{- end }}
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: [{{ include "multiarch.never" .root }}]
{{- end }}

{{/* The priority classes whose pods are never held, as texts of CEL. */}}
{{- define "multiarch.exempt.classes" -}}
{{- $named := dig "admission" "gate" "exempt_priority_classes" list .Values.config -}}
{{ concat (list "system-node-critical" "system-cluster-critical") $named | uniq | join "', '" | squote }}
{{- end }}
