{{/* Names, labels, metadata and images. "part" is one of `multiarch.parts`. */}}

{{- define "multiarch.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What all pods of the release have, and no pod of another one. */}}
{{- define "multiarch.release" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "multiarch.selector" -}}
{{ include "multiarch.release" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "multiarch.labels" -}}
{{ include "multiarch.release" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Metadata of an object: a dict of root and name, and as they are of use namespace, component, labels, annotations. */}}
{{- define "multiarch.metadata" -}}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
    {{- with .component }}
    app.kubernetes.io/component: {{ . }}
    {{- end }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* A ServiceAccount; the same dict, with a namespace. */}}
{{- define "multiarch.account" }}
---
apiVersion: v1
kind: ServiceAccount
{{ include "multiarch.metadata" . }}
{{- end }}

{{/* A role and its binding to an account of our namespace, the role of everywhere without a namespace: the same dict, with
account, and rules, of which each is a dict of resources, verbs, and as they are of use group, names, why. */}}
{{- define "multiarch.role" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "Role" "ClusterRole" (not (empty .namespace)) }}
{{ include "multiarch.metadata" . }}
rules:
{{- range .rules }}
- apiGroups: [{{ .group | default "" | quote }}]
  resources: [{{ join ", " .resources }}]{{ with .why }}  # {{ . }}{{ end }}
  {{- with .names }}
  resourceNames: [{{ join ", " . }}]
  {{- end }}
  verbs: [{{ join ", " .verbs }}]
{{- end }}
{{- include "multiarch.binding" (merge (dict "kind" (ternary "Role" "ClusterRole" (not (empty .namespace))) "role" .name) .) }}
{{- end }}

{{/* The same dict, with kind and role. */}}
{{- define "multiarch.binding" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
{{- if and .namespace (eq .kind "ClusterRole") }}{{ fail "a ClusterRole is bound everywhere" }}{{ end }}
{{ include "multiarch.metadata" . }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .role }}
subjects:
- kind: ServiceAccount
  name: {{ .account }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* An image of the registry that a parent chart names, if it does: a dict of root and image. */}}
{{- define "multiarch.image.from" -}}
{{- $registry := .root.Values.global.imageRegistry -}}
{{- if $registry }}{{ $registry }}/{{ regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" .image "" }}{{ else }}{{ .image }}{{ end -}}
{{- end }}

{{/* repository@digest, or repository:tag, of our own image. */}}
{{- define "multiarch.image" -}}
{{- $image := .Values.image -}}
{{ include "multiarch.image.from" (dict "root" . "image" $image.repository) }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The cluster's version without what vendors add, such as 1.36.3; --kube-version 1.36 is 1.36.0. */}}
{{- define "multiarch.kubernetes" -}}
{{ slice (splitList "." (printf "%s.0" (regexFind "[0-9]+(\\.[0-9]+)+" .Capabilities.KubeVersion.Version))) 0 3 | join "." }}
{{- end }}
