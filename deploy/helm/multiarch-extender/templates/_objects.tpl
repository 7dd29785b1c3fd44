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
# What the service reads; nothing is written{{ if dig "drift" "events" false (include "multiarch.settings" . | fromYaml) }} but events{{ end }}.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "multiarch.name" . }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
rules:
{{- $drift := dig "drift" dict (include "multiarch.settings" . | fromYaml) }}
{{- if eq .mode "webhook" }}
- apiGroups: [""]
  resources: [nodes]  # platforms and taints
  verbs: [list, watch]
{{- if or $drift.events $drift.check_seconds }}
- apiGroups: [""]
  resources: [pods]  # those that use an image whose tag has moved
  verbs: [list]
{{- end }}
{{- else }}
- apiGroups: [""]
  resources: [nodes]  # platforms and taints; get: one that the scheduler has seen before our watch did
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods]  # pending ones, when an image is not known; list: those that use an image whose tag has moved
  verbs: [list, watch]
{{- end }}
{{- if $drift.events }}
- apiGroups: [""]
  resources: [events]  # on workloads whose image has lost or gained a platform
  verbs: [create]
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
{{- if dig "registry" "pull_secrets" true (include "multiarch.settings" . | fromYaml) }}
- apiGroups: [""]
  resources: [secrets]  # the pull secrets that pods name, by name; leave this out with registry.pull_secrets: false
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
  maxUnavailable: {{ .root.Values.podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "multiarch.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* Certificate and authority, in base64: of the Secret that is there, else made. Empty but with source `helm`. */}}
{{- define "multiarch.certificate" -}}
{{- if eq .root.Values.certificates.source "helm" -}}
{{- $name := include "multiarch.name" . -}}
{{- $found := lookup "v1" "Secret" .root.Release.Namespace (printf "%s-tls" $name) -}}
{{- if and $found (index ($found.data | default dict) "ca.crt") -}}
{{ $found.data | toYaml }}
{{- else -}}
{{- $service := printf "%s.%s.svc" $name .root.Release.Namespace -}}
{{- $names := list $service (printf "%s.cluster.local" $service) -}}
{{- $addresses := list -}}
{{- with .root.Values.webhook.url -}}
{{- $host := (urlParse .).hostname -}}
{{- if regexMatch "^[0-9.]+$|:" $host -}}{{- $addresses = append $addresses $host -}}
{{- else -}}{{- $names = append $names $host -}}{{- end -}}
{{- end -}}
{{- $authority := genCAWithKey (printf "%s-authority" $name | trunc 64) 3650 (genPrivateKey "ecdsa") -}}
{{- $leaf := genSignedCertWithKey $service $addresses $names 3650 $authority (genPrivateKey "ecdsa") -}}
{{ dict "tls.crt" (b64enc $leaf.Cert) "tls.key" (b64enc $leaf.Key) "ca.crt" (b64enc $authority.Cert) | toYaml }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Service, Secret or Certificate, and MutatingWebhookConfiguration of a part; "selector" is its namespaceSelector. */}}
{{- define "multiarch.webhook" -}}
{{- $values := .root.Values -}}
{{- $name := include "multiarch.name" . -}}
{{- $space := .root.Release.Namespace -}}
{{- $certificate := include "multiarch.certificate" . | fromYaml }}
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
{{- if eq $values.certificates.source "helm" }}
---
apiVersion: v1
kind: Secret
metadata:
  name: {{ $name }}-tls
  namespace: {{ $space }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
type: kubernetes.io/tls
data:
  {{- toYaml $certificate | nindent 2 }}
{{- else if eq $values.certificates.source "cert-manager" }}
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
  duration: {{ $values.certificates.certManager.duration }}
  dnsNames:
  - {{ $name }}.{{ $space }}.svc
  {{- with $values.webhook.url }}
  {{- $host := (urlParse .).hostname }}
  {{- if regexMatch "^[0-9.]+$|:" $host }}
  ipAddresses:
  - {{ $host | quote }}
  {{- else }}
  - {{ $host }}
  {{- end }}
  {{- end }}
  privateKey:
    algorithm: ECDSA
    rotationPolicy: Always
  issuerRef:
    {{- if $values.certificates.certManager.issuerRef.name }}
    {{- toYaml $values.certificates.certManager.issuerRef | nindent 4 }}
    {{- else }}
    name: {{ include "multiarch.fullname" .root }}-authority
    {{- end }}
{{- end }}
---
{{- if eq $values.certificates.source "secret" }}
# How the API server comes to trust the service (docs/how-to/certificates.md has both ways in full). With cert-manager:
# a Certificate with secretName {{ $name }}-tls and dnsNames [{{ $name }}.{{ $space }}.svc], and on
# this object the annotation
#   cert-manager.io/inject-ca-from: {{ $space }}/<name of the Certificate>
# By hand: the authority's certificate, PEM in base64, as clientConfig.caBundle. Until then the API server cannot call
# the service, and, by `failurePolicy: Ignore`, does without.
#
# How the service comes to trust the API server, so that reviews may have pull secrets read: with
# admission.path_token_file, whoever applies this object makes its path /admission/pods/<token>. That is best done by
# kubectl patch, with `path` left out here, so that no token is in this file.
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
  name: {{ $name }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
    {{- with $values.webhook.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- $annotations := deepCopy $values.webhook.annotations }}
  {{- if eq $values.certificates.source "cert-manager" }}
  {{- $_ := set $annotations "cert-manager.io/inject-ca-from" (printf "%s/%s" $space $name) }}
  {{- end }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
webhooks:
- name: pods.{{ $name }}.multiarch-extender.io
  admissionReviewVersions: [v1]
  clientConfig:
    {{- if $values.webhook.url }}
    url: {{ $values.webhook.url }}/admission/pods
    {{- else }}
    service:
      name: {{ $name }}
      namespace: {{ $space }}
      {{- if not $values.webhook.pathTokenSecret }}
      path: /admission/pods
      {{- end }}
      port: 443
    {{- end }}
    {{- if eq $values.certificates.source "helm" }}
    caBundle: {{ index $certificate "ca.crt" }}
    {{- else if $values.certificates.caBundle }}
    caBundle: {{ b64enc $values.certificates.caBundle }}
    {{- end }}
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
  # deploy/policies/gate.yaml (1.36) holds them until the service is back. A service that is silent costs each pod the
  # whole timeout.
  {{- else }}
  # An outage does not keep pods from being created. One that names no scheduler then goes to the default one, which
  # asks nobody about its images, unless deploy/policies/scheduler-name.yaml (1.36) or scheduler-name-webhook.yaml names
  # the scheduler. The service still checks pods that have its scheduler's name. A service that is silent costs each pod
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
    {{- with .selector.matchLabels }}
    matchLabels:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    matchExpressions:
    {{- with .selector.matchExpressions }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    - key: kubernetes.io/metadata.name
      operator: NotIn
      {{- $never := concat (list "kube-system" "kube-node-lease" "kube-public" $space) $values.webhook.excludeNamespaces }}
      values: [{{ uniq $never | join ", " }}]
  # Pods about which the service would say nothing are not even sent. A pod that already asks for an architecture is:
  # it may still get a toleration, and its author a warning if its images do not run there.
  matchConditions:
  - name: not-bound-yet
    expression: "!has(object.spec.nodeName) || object.spec.nodeName == ''"
  - name: no-mirror-of-a-static-pod
    expression: "!has(object.metadata.annotations) || !('kubernetes.io/config.mirror' in object.metadata.annotations)"
  - name: not-of-a-daemonset  # its controller judges nodes by the template, not by what its pods are given
    expression: >-
      !has(object.metadata.ownerReferences) ||
      !object.metadata.ownerReferences.exists(owner,
        owner.kind == 'DaemonSet' && has(owner.controller) && owner.controller)
  - name: not-ignored
    expression: >-
      !has(object.metadata.annotations) ||
      !('multiarch-extender.io/mode' in object.metadata.annotations) ||
      object.metadata.annotations['multiarch-extender.io/mode'] != 'ignore'
  {{- with $values.webhook.matchConditions }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* admission.wait_seconds of a part. */}}
{{- define "multiarch.wait" -}}
{{ dig "admission" "wait_seconds" 1.5 (include "multiarch.settings" . | fromYaml) }}
{{- end }}
