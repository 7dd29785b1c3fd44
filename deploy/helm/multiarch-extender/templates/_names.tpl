{{/* Names, labels and images. "part" is a dict: root (the top context), mode, suffix, component, values. */}}

{{- define "multiarch.app" -}}
{{ .Chart.Name }}
{{- end }}

{{- define "multiarch.fullname" -}}
{{- $app := include "multiarch.app" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains $app .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $app | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "multiarch.part.webhook" -}}
{{ dict "mode" "webhook" "suffix" "webhook" "component" "webhook" | toYaml }}
{{- end }}
{{- define "multiarch.part.policy" -}}
{{ dict "mode" "policy" "suffix" "policy" "component" "policy" | toYaml }}
{{- end }}
{{- define "multiarch.part.secondScheduler" -}}
{{ dict "mode" "secondScheduler" "suffix" "scheduler" "component" "second-scheduler" | toYaml }}
{{- end }}
{{- define "multiarch.part.defaultScheduler" -}}
{{ dict "mode" "defaultScheduler" "suffix" "default-scheduler" "component" "default-scheduler" | toYaml }}
{{- end }}

{{/* The modes that have pods of their own, as a list: beside modes.webhook its pods let go what modes.policy holds. */}}
{{- define "multiarch.modes" -}}
{{- $found := list -}}
{{- range $mode, $values := .Values.modes -}}
{{- if and $values.enabled (not (and (eq $mode "policy") $.Values.modes.webhook.enabled)) -}}
{{- $found = append $found $mode -}}
{{- end -}}
{{- end -}}
{{ toYaml $found }}
{{- end }}

{{- define "multiarch.name" -}}
{{ .values.name | default (printf "%s-%s" (include "multiarch.fullname" .root) .suffix) }}
{{- end }}

{{- define "multiarch.labels" -}}
app.kubernetes.io/name: {{ include "multiarch.app" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "multiarch.selector" -}}
app.kubernetes.io/name: {{ include "multiarch.app" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* registry/name@digest, or registry/name:tag. A dict: root, image, tag. */}}
{{- define "multiarch.image" -}}
{{- $registry := .root.Values.global.imageRegistry | default .image.registry -}}
{{- if $registry }}{{ $registry }}/{{ end }}{{ .image.name }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .tag }}{{ end }}
{{- end }}

{{/* The cluster's version without what vendors add, such as 1.36.3; --kube-version 1.36 is 1.36.0. */}}
{{- define "multiarch.kubernetes" -}}
{{ slice (splitList "." (printf "%s.0" (regexFind "[0-9]+(\\.[0-9]+)+" .Capabilities.KubeVersion.Version))) 0 3 | join "." }}
{{- end }}

{{/* Whether a part has a webhook whose certificate the service makes; empty if not. */}}
{{- define "multiarch.is-self-managed" -}}
{{- if and (include "multiarch.has-webhook" .) (eq .root.Values.certificates.source "selfManaged") }}true{{ end }}
{{- end }}

{{/* Whether a part is asked about what has pod templates; empty if not. */}}
{{- define "multiarch.has-workloads" -}}
{{- if and (eq .mode "webhook") (not (has (toString .values.workloads) (list "off" "false"))) }}true{{ end }}
{{- end }}

{{/* Whether a part has a webhook that only names the scheduler; empty if not. */}}
{{- define "multiarch.has-scheduler-names" -}}
{{- if and (eq .mode "secondScheduler") (eq .values.outage.namedBy "webhook") }}true{{ end }}
{{- end }}

{{- define "multiarch.scheduler-names" -}}
{{ .values.outage.webhookName | default (printf "%s-names" (include "multiarch.name" .)) }}
{{- end }}

{{/* The names of a part's MutatingWebhookConfigurations, as a list. */}}
{{- define "multiarch.configurations" -}}
- {{ include "multiarch.name" . }}
{{- if include "multiarch.has-scheduler-names" . }}
- {{ include "multiarch.scheduler-names" . }}
{{- end }}
{{- end }}

{{/* Whether a part has a webhook; empty if not. */}}
{{- define "multiarch.has-webhook" -}}
{{- if or (eq .mode "webhook") (and (eq .mode "secondScheduler") .values.webhook) }}true{{ end }}
{{- end }}

{{/* Whether any part has a webhook; empty if not. */}}
{{- define "multiarch.has-webhooks" -}}
{{- $modes := .Values.modes -}}
{{- if or $modes.webhook.enabled (and $modes.secondScheduler.enabled $modes.secondScheduler.webhook) }}true{{ end }}
{{- end }}

{{/* Whether the API server holds pods by a policy, and a part lets them go; empty if not. */}}
{{- define "multiarch.has-policy" -}}
{{- $beside := and (eq .mode "webhook") .root.Values.modes.policy.enabled -}}
{{- if or (eq .mode "policy") $beside }}true{{ end }}
{{- end }}

{{/* Whether the second scheduler's webhook sees pods that the webhook or a policy holds, which it has to leave held; empty
if not. */}}
{{- define "multiarch.shares-gates" -}}
{{- if and (eq .mode "secondScheduler") (include "multiarch.has-webhook" .) -}}
{{- $modes := .root.Values.modes -}}
{{- $webhook := dict "root" .root "values" $modes.webhook -}}
{{- $unknown := dig "admission" "unknown" "pass" (include "multiarch.settings.own" $webhook | fromYaml) -}}
{{- if or $modes.policy.enabled (and $modes.webhook.enabled (eq $unknown "gate")) }}true{{ end }}
{{- end -}}
{{- end }}

{{/* Whether a part puts that policy into force, once a canary has shown that it works; empty if not. */}}
{{- define "multiarch.arms" -}}
{{- if and (include "multiarch.has-policy" .) .root.Values.canary.enabled }}true{{ end }}
{{- end }}

{{/* Whether a part holds pods, or lets go of those that a policy holds; empty if not. */}}
{{- define "multiarch.has-gates" -}}
{{- $unknown := dig "admission" "unknown" "pass" (include "multiarch.settings.own" . | fromYaml) -}}
{{- if or (include "multiarch.has-policy" .) (include "multiarch.shares-gates" .) (eq $unknown "gate") }}true{{ end }}
{{- end }}

{{/* Whether pods may be held by the API server: by a policy, or by a webhook; empty if not. */}}
{{- define "multiarch.holds" -}}
{{- $found := list -}}
{{- range $mode := include "multiarch.modes" . | fromYamlArray -}}
{{- $part := merge (dict "root" $ "values" (get $.Values.modes $mode)) (include (printf "multiarch.part.%s" $mode) $ | fromYaml) -}}
{{- if and (include "multiarch.has-gates" $part) (or (include "multiarch.has-policy" $part) (include "multiarch.has-webhook" $part)) -}}
{{- $found = append $found $mode -}}
{{- end -}}
{{- end -}}
{{- if $found }}true{{ end }}
{{- end }}

{{/* The modes whose parts let held pods go, as a list: those that hold some, else one, for pods that were held before. */}}
{{- define "multiarch.releasing" -}}
{{- $found := list -}}
{{- $modes := include "multiarch.modes" . | fromYamlArray -}}
{{- range $mode := $modes -}}
{{- $part := merge (dict "root" $ "values" (get $.Values.modes $mode)) (include (printf "multiarch.part.%s" $mode) $ | fromYaml) -}}
{{- if include "multiarch.has-gates" $part -}}{{- $found = append $found $mode -}}{{- end -}}
{{- end -}}
{{- $held := or .Values.gates.releaseOnly (and (not $found) (include "multiarch.held-before" .)) -}}
{{- range $mode := list "webhook" "policy" "defaultScheduler" "secondScheduler" -}}
{{- if and $held (not $found) (has $mode $modes) -}}{{- $found = list $mode -}}{{- end -}}
{{- end -}}
{{ toYaml $found }}
{{- end }}

{{/* Whether the release held pods until this upgrade, as the settings in the cluster say; empty if not. */}}
{{- define "multiarch.held-before" -}}
{{- if .Release.IsUpgrade -}}
{{- range $mode, $values := .Values.modes -}}
{{- $part := merge (dict "root" $ "values" $values) (include (printf "multiarch.part.%s" $mode) $ | fromYaml) -}}
{{- $map := lookup "v1" "ConfigMap" $.Release.Namespace (include "multiarch.name" $part) | default dict -}}
{{- if eq (dig "admission" "unknown" "" (dig "data" "config.yaml" "" $map | fromYaml)) "gate" }}true{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Whether a part lets held pods go; empty if not. */}}
{{- define "multiarch.lets-go" -}}
{{- if has .mode (include "multiarch.releasing" .root | fromYamlArray) }}true{{ end }}
{{- end }}

{{/* The Lease by which one replica at a time lets pods go. */}}
{{- define "multiarch.gates.lease" -}}
{{- $own := dig "admission" "gate" "lease" "" (include "multiarch.settings.own" . | fromYaml) -}}
{{ $own | default (printf "%s-held-pods" (include "multiarch.fullname" .root)) }}
{{- end }}

{{/* Namespaces whose pods are never touched, as the values of an expression. */}}
{{- define "multiarch.never" -}}
{{- $never := concat (list "kube-system" "kube-node-lease" "kube-public" .Release.Namespace) .Values.webhook.excludeNamespaces -}}
{{ uniq $never | join ", " }}
{{- end }}

{{/* Whether a part sends canaries, or shows by one that a policy works before it is in force; empty if not. */}}
{{- define "multiarch.has-canary" -}}
{{- $seconds := dig "admission" "canary_seconds" 60 (include "multiarch.settings.own" . | fromYaml) -}}
{{- $shows := and (include "multiarch.has-webhook" .) .root.Values.canary.enabled (ne (float64 $seconds) 0.0) }}
{{- if or $shows (include "multiarch.arms" .) }}true{{ end }}
{{- end }}

{{/* The namespace of a part's canaries. */}}
{{- define "multiarch.canary" -}}
{{ include "multiarch.name" . }}-canary
{{- end }}
