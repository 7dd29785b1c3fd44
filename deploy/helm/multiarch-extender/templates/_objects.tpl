{{/* Objects that several parts have. */}}

{{- define "multiarch.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "multiarch.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
  {{- with .root.Values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if .root.Values.rbac.create }}
---
{{- $drift := dig "drift" dict (include "multiarch.settings" . | fromYaml) }}
{{- $events := or $drift.events (include "multiarch.has-webhook" .) }}
# What the service reads; nothing is written{{ if $events }} but events{{ end }}.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "multiarch.name" . }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
rules:
- apiGroups: [""]
  resources: [nodes]  # platforms and taints; get: one that is asked about before our watch has seen it
  verbs: {{ if ne .mode "policy" }}[get, list, watch]{{ else }}[list, watch]{{ end }}
{{- if has .mode (list "webhook" "policy") }}
{{- if $drift.events }}
- apiGroups: [""]
  resources: [pods]  # those whose tag has moved
  verbs: [list]
{{- end }}
{{- else }}
- apiGroups: [""]
  resources: [pods]  # pending ones; list: those whose tag has moved
  verbs: [list, watch]
{{- end }}
{{- if $events }}
- apiGroups: [""]
  resources: [events]  # on DaemonSets whose pods come to nodes that do not run them{{ if $drift.events }}, and workloads whose image has changed{{ end }}
  verbs: [create]
{{- end }}
{{- if $drift.events }}
- apiGroups: [apps]
  resources: [replicasets]  # which Deployment has them
  verbs: [get]
- apiGroups: [batch]
  resources: [jobs]  # which CronJob has them
  verbs: [get]
{{- end }}
- apiGroups: [""]
  resources: [namespaces]  # their annotations
  verbs: [list, watch]
{{- if eq "openshift" (dig "registry" "mirrors" "" (include "multiarch.settings" . | fromYaml)) }}
- apiGroups: [config.openshift.io]
  resources: [imagedigestmirrorsets, imagetagmirrorsets, images]  # where nodes pull from
  verbs: [list, watch]
- apiGroups: [operator.openshift.io]
  resources: [imagecontentsourcepolicies]  # the same, older
  verbs: [list, watch]
{{- end }}
{{- $secrets := dig "registry" "pull_secrets" false (include "multiarch.settings" . | fromYaml) }}
{{- if and $secrets (kindIs "bool" $secrets) }}
- apiGroups: [""]
  resources: [secrets]  # the pull secrets that pods name, by name (registry.pull_secrets)
  verbs: [get]
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "multiarch.name" . }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "multiarch.name" . }}
subjects:
- kind: ServiceAccount
  name: {{ include "multiarch.name" . }}
  namespace: {{ .root.Release.Namespace }}
{{- if kindIs "slice" $secrets }}
{{- range uniq $secrets }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "multiarch.name" $ }}-pull-secrets
  namespace: {{ . }}
  labels:
    {{- include "multiarch.labels" $.root | nindent 4 }}
rules:
- apiGroups: [""]
  resources: [secrets]  # the pull secrets that its pods name, by name
  verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "multiarch.name" $ }}-pull-secrets
  namespace: {{ . }}
  labels:
    {{- include "multiarch.labels" $.root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "multiarch.name" $ }}-pull-secrets
subjects:
- kind: ServiceAccount
  name: {{ include "multiarch.name" $ }}
  namespace: {{ $.root.Release.Namespace }}
{{- end }}
{{- end }}
{{- if eq "openshift" (dig "registry" "mirrors" "" (include "multiarch.settings" . | fromYaml)) }}
{{- $managed := dict "configmaps" (list "merged-trusted-image-registry-ca" "trusted-ca-bundle") -}}
{{- $ours := dict "secrets" (list "pull-secret") "configmaps" (list "user-ca-bundle") -}}
{{- range $space, $resources := dict "openshift-config" $ours "openshift-config-managed" $managed }}
---
# What nodes of OpenShift trust and log in with.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "multiarch.name" $ }}
  namespace: {{ $space }}
  labels:
    {{- include "multiarch.labels" $.root | nindent 4 }}
rules:
{{- range $resource, $names := $resources }}
- apiGroups: [""]
  resources: [{{ $resource }}]
  resourceNames: [{{ join ", " $names }}]
  verbs: [get]
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "multiarch.name" $ }}
  namespace: {{ $space }}
  labels:
    {{- include "multiarch.labels" $.root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "multiarch.name" $ }}
subjects:
- kind: ServiceAccount
  name: {{ include "multiarch.name" $ }}
  namespace: {{ $.root.Release.Namespace }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "multiarch.budget" -}}
{{- if .root.Values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "multiarch.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "multiarch.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* The host of webhook.url, for certificates: a map with `dns` or `ip`. */}}
{{- define "multiarch.host" -}}
{{- with .root.Values.webhook.url -}}
{{- $host := (urlParse .).hostname -}}
{{ dict (ternary "ip" "dns" (regexMatch "^[0-9.]+$|:" $host)) $host | toYaml }}
{{- end -}}
{{- end }}

{{/* What the service needs to look after its certificate: a Secret, and rights on that and on its configurations. */}}
{{- define "multiarch.identity" -}}
{{- $name := include "multiarch.name" . -}}
{{- $space := .root.Release.Namespace }}
---
# The webhook's certificates. The service fills it; the chart makes it so that the service needs no right to
# create Secrets, and so that it goes when the release does. `kubectl patch` of its data to null has all made anew.
apiVersion: v1
kind: Secret
metadata:
  name: {{ $name }}-identity
  namespace: {{ $space }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
type: Opaque
{{- if .root.Values.rbac.create }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}-certificates
  namespace: {{ $space }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
rules:
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ $name }}-identity]
  verbs: [get, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}-certificates
  namespace: {{ $space }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}-certificates
subjects:
- kind: ServiceAccount
  name: {{ $name }}
  namespace: {{ $space }}
---
# The webhook's configuration has whom the API server trusts.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}-certificates
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
rules:
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations]
  resourceNames: [{{ include "multiarch.configurations" . | fromYamlArray | join ", " }}]
  verbs: [get, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}-certificates
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}-certificates
subjects:
- kind: ServiceAccount
  name: {{ $name }}
  namespace: {{ $space }}
{{- end }}
{{- end }}

{{/* What a part's webhook asks of a namespace's labels, beside the names that it never takes. */}}
{{- define "multiarch.selector.of" -}}
{{- if has .mode (list "webhook" "policy") -}}
{{ .values.namespaceSelector | toYaml }}
{{- else -}}
{{- $chosen := dict "key" "multiarch-extender.io/scheduler" "operator" "In" "values" (list .values.schedulerName) -}}
{{ dict "matchExpressions" (list $chosen) | toYaml }}
{{- end }}
{{- end }}

{{/* Service, Secret or Certificate, and MutatingWebhookConfiguration of a part. */}}
{{- define "multiarch.webhook" -}}
{{- $values := .root.Values -}}
{{- $name := include "multiarch.name" . -}}
{{- $space := .root.Release.Namespace -}}
{{- $host := include "multiarch.host" . | fromYaml }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  namespace: {{ $space }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
spec:
  selector:
    {{- include "multiarch.selector" . | nindent 4 }}
  ports:
  - name: webhook
    port: 443
    targetPort: webhook
{{- if eq $values.certificates.source "selfManaged" }}
{{- include "multiarch.identity" . }}
{{- else if eq $values.certificates.source "certManager" }}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ $name }}
  namespace: {{ $space }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
spec:
  secretName: {{ $name }}-tls
  duration: 2160h
  dnsNames:
  - {{ $name }}.{{ $space }}.svc
  {{- with $host.dns }}
  - {{ . }}
  {{- end }}
  {{- with $host.ip }}
  ipAddresses:
  - {{ . | quote }}
  {{- end }}
  privateKey:
    algorithm: ECDSA
    rotationPolicy: Always
  issuerRef:
    {{- include "multiarch.issuer" .root | nindent 4 }}
{{- end }}
---
{{- if eq $values.certificates.source "existingSecret" }}
# How the API server comes to trust the service (docs/how-to/certificates.md has both ways in full). With cert-manager:
# a Certificate with secretName {{ $name }}-tls and dnsNames [{{ $name }}.{{ $space }}.svc], and on
# this object the annotation
#   cert-manager.io/inject-ca-from: {{ $space }}/<name of the Certificate>
# By hand: the authority's certificate, PEM in base64, as clientConfig.caBundle. Until then the API server cannot call
# the service, and, by `failurePolicy: Ignore`, does without.
{{- end }}
{{- if eq .mode "webhook" }}
#
# Every namespace but the cluster's own and ours. For namespaces that opt in instead, add to namespaceSelector:
#     matchLabels:
#       multiarch-extender.io/admission: enabled
{{- end }}
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  {{- include "multiarch.configuration.metadata" (dict "part" . "name" $name) | nindent 2 }}
webhooks:
- name: pods.{{ $name }}.multiarch-extender.io
  admissionReviewVersions: [v1]
  clientConfig:
    {{- include "multiarch.configuration.client" (dict "part" . "path" "/admission/pods") | trim | nindent 4 }}
  rules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [pods]
    operations: [CREATE]
    scope: Namespaced
  matchPolicy: Equivalent
  {{- if eq $values.webhook.failurePolicy "Ignore" }}
  {{- if eq .mode "webhook" }}
  # An outage does not keep pods from being created. Those that were missed are checked by the scheduler's side where
  # second-scheduler.yaml or default-scheduler.yaml is in use, and by nothing where the webhook is alone, unless
  # modes.policy (1.36) holds them until the service is back. A service that is silent costs each pod the whole timeout.
  {{- else }}
  # An outage does not keep pods from being created. One that names no scheduler then goes to the default one, which
  # asks nobody about its images, unless a policy (1.36) or scheduler-name-webhook.yaml names the scheduler
  # (modes.secondScheduler.outage). The service still checks pods that have its scheduler's name. A service that is silent costs each pod
  # of these namespaces the whole timeout.
  {{- end }}
  {{- else }}
  # No pod of the namespaces below is created in an outage.
  {{- end }}
  failurePolicy: {{ $values.webhook.failurePolicy }}
  # More than admission.wait_seconds ({{ include "multiarch.wait" . }}): the service answers in time, or without a patch.
  timeoutSeconds: {{ $values.webhook.timeoutSeconds }}
  reinvocationPolicy: IfNeeded  # other webhooks add containers, whose images count as well
  sideEffects: None
  namespaceSelector:
    {{- include "multiarch.namespaces" . | nindent 4 }}
  # Pods about which the service would say nothing are not even sent. A pod that already asks for an architecture is:
  # it may still get a toleration, and its author a warning if its images do not run there.
  matchConditions:
  {{- include "multiarch.conditions" . | nindent 2 }}
  {{- if eq $values.webhook.failurePolicy "Fail" }}
  # An outage refuses no pod of what the cluster, and so the service itself, needs to run.
  - name: not-critical
    expression: >-
      !has(object.spec.priorityClassName) ||
      !(object.spec.priorityClassName in ['{{ include "multiarch.exempt.classes" .root | fromYamlArray | join "', '" }}'])
  {{- end }}
  {{- with $values.webhook.matchConditions }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if include "multiarch.has-workloads" . }}
- name: workloads.{{ $name }}.multiarch-extender.io
  admissionReviewVersions: [v1]
  clientConfig:
    {{- include "multiarch.configuration.client" (dict "part" . "path" "/admission/workloads") | trim | nindent 4 }}
  # Groups that are not installed cost nothing. `*` matches no subresource, so changes of status never come.
  rules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [replicationcontrollers, podtemplates]
    operations: [CREATE, UPDATE]
    scope: Namespaced
  - apiGroups:
    - apps
    - batch
    - agones.dev
    - apps.kruise.io
    - apps.openshift.io
    - argoproj.io
    - batch.volcano.sh
    - jobset.x-k8s.io
    - keda.sh
    - kubeflow.org
    - leaderworkerset.x-k8s.io
    - ray.io
    - serving.knative.dev
    - serving.kserve.io
    - trainer.kubeflow.org
    - workload.codeflare.dev
    apiVersions: ["*"]
    resources: ["*"]
    operations: [CREATE, UPDATE]
    scope: "*"  # ClusterTrainingRuntime too
  matchPolicy: Equivalent
  # An outage keeps nothing from being created or changed.
  failurePolicy: Ignore
  # Whoever applies an object waits a second at most for lookups.
  timeoutSeconds: 3
  reinvocationPolicy: IfNeeded
  sideEffects: None
  namespaceSelector:
    {{- include "multiarch.namespaces" . | nindent 4 }}
  matchConditions:
  # Controllers show warnings to nobody, and fight over what they own.
  - name: no-controlling-owner
    expression: >-
      !has(object.metadata.ownerReferences) ||
      !object.metadata.ownerReferences.exists(owner, has(owner.controller) && owner.controller)
  - name: spec-changed
    expression: >-
      request.operation == 'CREATE' || !has(object.spec) || !has(oldObject.spec) || object.spec != oldObject.spec
  {{- include "multiarch.condition.not-ignored" . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The namespaces that a part's webhooks serve. */}}
{{- define "multiarch.namespaces" -}}
{{ include "multiarch.policy.selector" (dict "root" .root "selector" (include "multiarch.selector.of" . | fromYaml)) | trim }}
{{- end }}

{{/* admission.wait_seconds of a part. */}}
{{- define "multiarch.wait" -}}
{{ dig "admission" "wait_seconds" 1.5 (include "multiarch.settings" . | fromYaml) }}
{{- end }}

{{/* The issuer of certificates by cert-manager. */}}
{{- define "multiarch.issuer" -}}
{{- if .Values.certificates.certManager.issuerRef.name -}}
{{ toYaml .Values.certificates.certManager.issuerRef }}
{{- else -}}
name: {{ include "multiarch.fullname" . }}-authority
{{- end }}
{{- end }}

{{/* Conditions on pods that every webhook of ours has. */}}
{{- define "multiarch.conditions" -}}
- name: not-bound-yet
  expression: "!has(object.spec.nodeName) || object.spec.nodeName == ''"
- name: no-mirror-of-a-static-pod
  expression: "!has(object.metadata.annotations) || !('kubernetes.io/config.mirror' in object.metadata.annotations)"
{{ include "multiarch.condition.not-ignored" . }}
{{- end }}

{{- define "multiarch.condition.not-ignored" -}}
- name: not-ignored
  expression: >-
    !has(object.metadata.annotations) ||
    !('multiarch-extender.io/mode' in object.metadata.annotations) ||
    object.metadata.annotations['multiarch-extender.io/mode'] != 'ignore'
{{- end }}

{{/* Metadata of a MutatingWebhookConfiguration: a dict of part and name. */}}
{{- define "multiarch.configuration.metadata" -}}
{{- $root := .part.root -}}
name: {{ .name }}
labels:
  {{- include "multiarch.labels" $root | nindent 2 }}
{{- if eq $root.Values.certificates.source "certManager" }}
annotations:
  cert-manager.io/inject-ca-from: {{ $root.Release.Namespace }}/{{ include "multiarch.name" .part }}
{{- end }}
{{- end }}

{{/* How the API server calls a webhook: a dict of part and path. */}}
{{- define "multiarch.configuration.client" -}}
{{- $values := .part.root.Values -}}
{{- if $values.webhook.url }}
url: {{ print $values.webhook.url .path }}
{{- else }}
service:
  name: {{ include "multiarch.name" .part }}
  namespace: {{ .part.root.Release.Namespace }}
  path: {{ .path }}
  port: 443
{{- end }}
{{- with $values.certificates.caBundle }}
caBundle: {{ b64enc . }}
{{- end }}
{{- if eq $values.certificates.source "selfManaged" }}
# The service writes caBundle; upgrades leave it as it is.
{{- end }}
{{- end }}
