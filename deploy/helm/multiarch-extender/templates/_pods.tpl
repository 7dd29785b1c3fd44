{{/* What the pods of all parts have in common. */}}

{{- define "multiarch.pod.metadata" -}}
labels:
  {{- include "multiarch.selector" . | nindent 2 }}
  {{- with mergeOverwrite (deepCopy .root.Values.commonLabels) .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  # A new one makes new pods: the ConfigMap's files are read at start only.
  checksum/configuration: {{ include "multiarch.files" . | sha256sum | trunc 16 | quote }}
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The files of a part's ConfigMap. */}}
{{- define "multiarch.files" -}}
config.yaml: |
  {{- include "multiarch.settings.file" . | nindent 2 }}
{{- if eq .mode "secondScheduler" }}
scheduler.yaml: |
  # kube-scheduler. deploy/scheduler/second-scheduler.yaml says why for each value.
  {{- include "multiarch.second-scheduler.configuration" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "multiarch.configmap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "multiarch.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
data:
  {{- include "multiarch.files" . | nindent 2 }}
{{- end }}

{{- define "multiarch.pod.common" -}}
serviceAccountName: {{ include "multiarch.name" . }}
{{ include "multiarch.pod.basis" . | trim }}
{{ include "multiarch.pod.names" . | trim }}
{{- $grace := dig "shutdown" "grace_seconds" 20.0 (include "multiarch.settings" . | fromYaml) }}
# More than shutdown.grace_seconds ({{ $grace }}).
terminationGracePeriodSeconds: {{ add (ceil $grace) 10 }}
{{- end }}

{{/* Class and pull secrets. */}}
{{- define "multiarch.pod.basis" -}}
{{- with .root.Values.priorityClass.name }}
priorityClassName: {{ . }}
{{- end }}
{{- $secrets := concat (.root.Values.global.imagePullSecrets | default list) .root.Values.image.pullSecrets }}
{{- with $secrets }}
imagePullSecrets:
{{- range . }}
- name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
{{- end }}
{{- end }}
enableServiceLinks: false
{{- end }}

{{/* Wherever our image runs, and whatever tells its architecture by a taint. */}}
{{- define "multiarch.pod.tolerations" -}}
{{- range .root.Values.image.architectures }}
- {key: kubernetes.io/arch, operator: Equal, value: {{ . | quote }}, effect: NoSchedule}
- {key: arch, operator: Equal, value: {{ . | quote }}, effect: NoSchedule}
{{- end }}
{{- if has "arm64" .root.Values.image.architectures }}
- {key: k8smultiarcher, operator: Equal, value: arm64Supported, effect: NoSchedule}
{{- end }}
{{- with .root.Values.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "multiarch.pod.architectures" -}}
- key: kubernetes.io/arch
  operator: In
  values: [{{ range $index, $each := .root.Values.image.architectures }}{{ if $index }}, {{ end }}{{ $each | quote }}{{ end }}]
{{- end }}

{{- define "multiarch.pod.where" -}}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
# Nobody else keeps our own pods where our image runs: the webhook passes over its own namespace.
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        {{- include "multiarch.pod.architectures" . | nindent 8 }}
  {{- if .component }}
  # Over hosts. It is no second topologySpreadConstraint: kube-scheduler heeds none on nodes that lack the label of one,
  # as they often lack that of zones. A cluster of one node gets all replicas.
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "multiarch.selector" . | nindent 12 }}
  {{- end }}
  {{- if .beside }}
  # Where a pod of ours runs the image is there already.
  podAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            app.kubernetes.io/name: {{ include "multiarch.app" .root }}
            app.kubernetes.io/instance: {{ .root.Release.Name }}
  {{- end }}
tolerations:
{{- include "multiarch.pod.tolerations" . }}
{{- end }}

{{- define "multiarch.pod.placement" -}}
{{ include "multiarch.pod.where" . | trim }}
topologySpreadConstraints:
- topologyKey: topology.kubernetes.io/zone
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "multiarch.selector" . | nindent 6 }}
{{- end }}

{{- define "multiarch.pod.security" -}}
runAsNonRoot: true
{{- if not .Values.platformAssignsUser }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "multiarch.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The service's container, from its arguments on. */}}
{{- define "multiarch.container" -}}
{{- $values := .root.Values -}}
args: [serve, --config=/etc/multiarch-extender/config.yaml]
env:
- name: STATE_DIRECTORY  # where what is known of images is kept
  value: /var/lib/multiarch-extender
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
ports:
{{- if eq .mode "defaultScheduler" }}
- name: scheduler  # on loopback; said here so that nothing else is placed on the port
  containerPort: 8880
  hostPort: 8880
- name: operations  # on every address of the node: health for the kubelet, metrics for Prometheus
  containerPort: 8881
  hostPort: 8881
{{- else }}
{{- if include "multiarch.has-webhook" . }}
- name: webhook
  containerPort: {{ $values.webhook.port }}
  {{- if $values.webhook.hostNetwork }}
  hostPort: {{ $values.webhook.port }}
  {{- end }}
{{- end }}
- name: operations
  containerPort: 8881
  {{- if and $values.webhook.hostNetwork (include "multiarch.has-webhook" .) }}
  hostPort: 8881
  {{- end }}
{{- end }}
startupProbe:  # not /readyz: what is not ready waits for the API server, and would by no restart
  httpGet:
    path: /livez
    port: operations
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: /livez
    port: operations
readinessProbe:
  httpGet:
    path: /readyz
    port: operations
  periodSeconds: 5
# No CPU limit: throttling would show as latency in every scheduling cycle.
resources:
  {{- toYaml $values.resources | nindent 2 }}
securityContext:
  {{- include "multiarch.container.security" . | nindent 2 }}
volumeMounts:
- name: state
  mountPath: /var/lib/multiarch-extender
- name: configuration
  mountPath: /etc/multiarch-extender
  readOnly: true
{{- if include "multiarch.is-self-managed" . }}
- name: identity
  mountPath: /tmp
{{- end }}
{{- range include "multiarch.mounts" . | fromYamlArray }}
- name: {{ .name }}
  mountPath: {{ .path }}
  readOnly: true
{{- end }}
{{- with $values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Secrets and ConfigMaps that are mounted where the settings name their files: a list of name, path, volume. */}}
{{- define "multiarch.mounts" -}}
{{- $values := .root.Values -}}
{{- $etc := "/etc/multiarch-extender" -}}
{{- $mounts := list -}}
{{- if and (include "multiarch.has-webhook" .) (ne $values.certificates.source "selfManaged") -}}
{{- $secret := dict "secretName" (printf "%s-tls" (include "multiarch.name" .)) -}}
{{- $mounts = append $mounts (dict "name" "certificate" "path" (print $etc "-tls") "secret" $secret) -}}
{{- end -}}
{{- if include "multiarch.has-webhook" . -}}
{{- with $values.webhook.clientCaSecret -}}
{{- $secret := dict "secretName" . "items" (list (dict "key" "ca.crt" "path" "ca.crt")) -}}
{{- $mounts = append $mounts (dict "name" "client-ca" "path" (print $etc "-client-ca") "secret" $secret) -}}
{{- end -}}
{{- end -}}
{{- if eq $values.store.kind "redis" -}}
{{- with $values.store.redis.passwordSecret -}}
{{- $mounts = append $mounts (dict "name" "redis" "path" (print $etc "-redis") "secret" (dict "secretName" .)) -}}
{{- end -}}
{{- with $values.store.redis.caSecret -}}
{{- $mounts = append $mounts (dict "name" "redis-ca" "path" (print $etc "-redis-ca") "secret" (dict "secretName" .)) -}}
{{- end -}}
{{- end -}}
{{- with $values.store.keySecret -}}
{{- $mounts = append $mounts (dict "name" "key" "path" (print $etc "-key") "secret" (dict "secretName" .)) -}}
{{- end -}}
{{- with $values.registries.caConfigMap -}}
{{- $mounts = append $mounts (dict "name" "authorities" "path" (print $etc "-ca") "configMap" (dict "name" .)) -}}
{{- end -}}
{{- if $values.registries.hosts -}}
{{- $items := list -}}
{{- range $index, $host := keys $values.registries.hosts | sortAlpha -}}
{{- $items = append $items (dict "key" (printf "%d" $index) "path" (printf "%s/hosts.toml" $host)) -}}
{{- end -}}
{{- $map := dict "name" (printf "%s-hosts" (include "multiarch.fullname" .root)) "items" $items -}}
{{- $mounts = append $mounts (dict "name" "hosts" "path" (print $etc "-hosts") "configMap" $map) -}}
{{- end -}}
{{- with $values.registries.dockerConfigSecret -}}
{{- $items := list (dict "key" ".dockerconfigjson" "path" "config.json") -}}
{{- $secret := dict "secretName" . "items" $items -}}
{{- $mounts = append $mounts (dict "name" "docker-config" "path" (print $etc "-docker") "secret" $secret) -}}
{{- end -}}
{{ toYaml $mounts }}
{{- end }}

{{- define "multiarch.volumes" -}}
- name: state  # what is known of images outlives the container; registries are asked for less
  emptyDir:
    sizeLimit: 256Mi  # several times what cache.size images take
- name: configuration
  configMap:
    name: {{ include "multiarch.name" . }}
{{- if include "multiarch.is-self-managed" . }}
- name: identity  # copies of the certificate and its key, in memory and on no disk
  emptyDir:
    medium: Memory
    sizeLimit: 4Mi
{{- end }}
{{- range include "multiarch.mounts" . | fromYamlArray }}
- name: {{ .name }}
  {{- with .secret }}
  secret:
    {{- toYaml . | nindent 4 }}
    defaultMode: 0440  # for the group of fsGroup
  {{- end }}
  {{- with .configMap }}
  configMap:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Settings and Deployment of a part that is the service alone. */}}
{{- define "multiarch.deployment" -}}
{{- $hostNetwork := and .root.Values.webhook.hostNetwork (include "multiarch.has-webhook" .) }}
---
{{ include "multiarch.configmap" . }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "multiarch.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "multiarch.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  replicas: {{ .values.replicas }}
  selector:
    matchLabels:
      {{- include "multiarch.selector" . | nindent 6 }}
  template:
    metadata:
      {{- include "multiarch.pod.metadata" . | nindent 6 }}
    spec:
      {{- include "multiarch.pod.common" . | nindent 6 }}
      {{- if $hostNetwork }}
      hostNetwork: true  # for an API server that reaches nodes and not pods
      {{- end }}
      {{- include "multiarch.pod.placement" . | trim | nindent 6 }}
      # The Pod Security standard `restricted`{{ if $hostNetwork }}, but for the host's network{{ end }}.
      securityContext:
        {{- include "multiarch.pod.security" .root | nindent 8 }}
      containers:
      - name: multiarch-extender
        image: {{ include "multiarch.image" (dict "root" .root "image" .root.Values.image "tag" .root.Chart.AppVersion) }}
        imagePullPolicy: {{ .root.Values.image.pullPolicy }}
        {{- include "multiarch.container" . | nindent 8 }}
      volumes:
      {{- include "multiarch.volumes" . | nindent 6 }}
{{- end }}
