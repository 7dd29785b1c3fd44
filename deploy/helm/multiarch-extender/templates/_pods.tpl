{{/* The pods of the parts, and what those of hooks have in common with them. */}}

{{/* The files of a part's ConfigMap. */}}
{{- define "multiarch.files" -}}
config.yaml: |
  # The service. `multiarch-extender config` prints every setting. Read at start only: kubectl rollout restart.
  {{- toYaml .settings | nindent 2 }}
{{- if eq .mode "secondScheduler" }}
scheduler.yaml: |
  # kube-scheduler. deploy/scheduler/second-scheduler.yaml says why for each value.
  {{- include "multiarch.kube-scheduler.configuration" . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Selector and template of a workload. */}}
{{- define "multiarch.pods" -}}
revisionHistoryLimit: {{ .pods.revisionHistoryLimit }}
selector:
  matchLabels:
    {{- include "multiarch.selector" . | nindent 4 }}
template:
  metadata:
    labels:
      {{- include "multiarch.pod.labels" . | nindent 6 }}
    annotations:
      # A new one makes new pods: the ConfigMap's files are read at start only.
      checksum/configuration: {{ include "multiarch.files" . | sha256sum | trunc 16 | quote }}
      {{- with .pods.podAnnotations }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    serviceAccountName: {{ .account }}
    {{- include "multiarch.pod.basis" . | trim | nindent 4 }}
    {{- include "multiarch.pod.names" . | trim | nindent 4 }}
    {{- $grace := dig "shutdown" "grace_seconds" 20.0 .settings }}
    terminationGracePeriodSeconds: {{ add (ceil $grace) 10 }}  # more than the service's own {{ $grace }} s
    {{- if .hostNetwork }}
    hostNetwork: true  # {{ if .scheduler }}kube-scheduler is on it, and asks 127.0.0.1{{ else }}for an API server that reaches nodes and not pods{{ end }}
    {{- end }}
    {{- include "multiarch.pod.where" . | trim | nindent 4 }}
    # The Pod Security standard `restricted`{{ if .hostNetwork }}, but for the host's network{{ end }}.
    {{- include "multiarch.pod.security" . | nindent 4 }}
    {{- $sidecar := eq .mode "secondScheduler" }}
    {{- if or $sidecar .pods.initContainers }}
    initContainers:
    {{- with .pods.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if $sidecar }}
    - name: multiarch-extender
      restartPolicy: Always  # a sidecar: up before kube-scheduler starts, and until it has ended
      {{- include "multiarch.container" . | nindent 6 }}
    {{- end }}
    {{- end }}
    containers:
    {{- if $sidecar }}
    {{- include "multiarch.kube-scheduler" . | nindent 4 }}
    {{- else }}
    - name: multiarch-extender
      {{- include "multiarch.container" . | nindent 6 }}
    {{- end }}
    {{- with .pods.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    volumes:
    {{- include "multiarch.volumes" . | nindent 4 }}
{{- end }}

{{/* What follows is for pods of parts and of hooks: a dict of root, component, and pods, which are values such as affinity. */}}

{{- define "multiarch.pod.labels" -}}
{{ include "multiarch.selector" . }}
{{- with mergeOverwrite (deepCopy .root.Values.commonLabels) .pods.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Class and pull secrets. */}}
{{- define "multiarch.pod.basis" -}}
{{- with .pods.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with concat .root.Values.global.imagePullSecrets .root.Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ if kindIs "string" . }}{{ . }}{{ else }}{{ .name }}{{ end }}
{{- end }}
{{- end }}
enableServiceLinks: false
{{- end }}

{{/* Nodes: the same dict; of a part with mode and values, of a hook with `beside` if it is to be near our pods. */}}
{{- define "multiarch.pod.where" -}}
{{- with .pods.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
# Nobody else keeps our own pods where our image runs: the webhook passes over its own namespace.
affinity:
  {{- include "multiarch.pod.affinity" . | nindent 2 }}
{{- with .pods.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
- {{ merge (deepCopy .) (dict "labelSelector" (dict "matchLabels" (include "multiarch.selector" $ | fromYaml))) | toYaml | nindent 2 | trim }}
{{- end }}
{{- end }}
tolerations:  # wherever our image runs, and whatever taint names its architecture
{{- range .root.Values.image.architectures }}
- {key: kubernetes.io/arch, operator: Equal, value: {{ . | quote }}, effect: NoSchedule}
- {key: arch, operator: Equal, value: {{ . | quote }}, effect: NoSchedule}
{{- end }}
{{- with .pods.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The values' affinity with what ours takes: our nodes in each term, and where values say nothing, other zones. */}}
{{- define "multiarch.pod.affinity" -}}
{{- $ours := list (dict "key" "kubernetes.io/arch" "operator" "In" "values" .root.Values.image.architectures) -}}
{{- if eq "defaultScheduler" (.mode | default "") -}}
{{- $labelled := dict "key" .values.nodeLabel "operator" "Exists" -}}
{{- $ours = concat (list $labelled (dict "key" "kubernetes.io/os" "operator" "In" "values" (list "linux"))) $ours -}}
{{- end -}}
{{- $affinity := deepCopy .pods.affinity -}}
{{- $nodes := $affinity.nodeAffinity | default dict -}}
{{- $terms := list -}}
{{- range dig "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $nodes -}}
{{- $terms = append $terms (set . "matchExpressions" (concat (.matchExpressions | default list) $ours)) -}}
{{- end -}}
{{- $_ := set $nodes "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $nodes -}}
{{- if and (hasKey . "mode") (ne .mode "defaultScheduler") (not $affinity.podAntiAffinity) -}}
{{- /* No second topologySpreadConstraint: kube-scheduler heeds none on nodes that lack the label of one, as they often lack
that of zones. A cluster of one node gets all replicas. */ -}}
{{- $apart := dict "topologyKey" "topology.kubernetes.io/zone" "labels" (include "multiarch.selector" .) -}}
{{- $_ := set $affinity "podAntiAffinity" (include "multiarch.pod.near" $apart | fromYaml) -}}
{{- else if and .beside (not $affinity.podAffinity) -}}{{/* where a pod of ours runs the image is there already */}}
{{- $near := dict "topologyKey" "kubernetes.io/hostname" "labels" (include "multiarch.release" .root) -}}
{{- $_ := set $affinity "podAffinity" (include "multiarch.pod.near" $near | fromYaml) -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end }}

{{- define "multiarch.pod.near" -}}
preferredDuringSchedulingIgnoredDuringExecution:
- weight: 100
  podAffinityTerm:
    topologyKey: {{ .topologyKey }}
    labelSelector:
      matchLabels:
        {{- nindent 8 .labels }}
{{- end }}

{{/* OpenShift chooses the user of our pods, and refuses another one. */}}
{{- define "multiarch.pod.security" -}}
{{- $ours := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if not (.root.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}
{{- range list "runAsUser" "runAsGroup" "fsGroup" }}{{ $_ := set $ours . 65532 }}{{ end -}}
{{- end -}}
securityContext:
  {{- mergeOverwrite $ours (deepCopy .pods.podSecurityContext) | toYaml | nindent 2 }}
{{- end }}

{{- define "multiarch.container.security" -}}
{{- $ours := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
securityContext:
  {{- mergeOverwrite $ours (deepCopy .pods.securityContext) | toYaml | nindent 2 }}
{{- end }}

{{/* Whom our pods ask for names: the cluster's name service where values name a Service or a host without a dot. */}}
{{- define "multiarch.pod.names" -}}
{{- $values := .root.Values -}}
{{- $registry := $values.config.registry | default dict -}}
{{- $named := list (dig "cache" "url" "" $values.config) (join " " $registry.allow) -}}
{{- range $registry.plain_http }}{{ $named = append $named (print "http://" .) }}{{ end -}}
{{- range $host, $text := $values.registries.hosts }}{{ $named = append $named (printf "https://%s %s" $host $text) }}{{ end -}}
{{- range .pods.extraEnv -}}
{{- if regexMatch "(?i)^(https?|all)_proxy$" .name }}{{ $named = append $named (printf "http://%s" (.value | default "" | trimPrefix "http://")) }}{{ end -}}
{{- end -}}
{{- $internal := regexMatch "\\.svc([./: ]|$)|\\.cluster\\.local|://([^/@ ]*@)?[a-zA-Z][a-zA-Z0-9-]*([:/?\" ]|$)" (join " " $named) -}}
{{- $policy := .pods.dnsPolicy | default (ternary "ClusterFirst" "Default" $internal) -}}
{{- if eq "None" $policy -}}
dnsPolicy: None
{{- else if eq "Default" $policy -}}
# The node's own name service, by which the container runtime finds the registries too; no need of CoreDNS.
dnsPolicy: Default
{{- else -}}
dnsPolicy: {{ ternary "ClusterFirstWithHostNet" "ClusterFirst" .hostNetwork }}  # names of this cluster too
{{- end }}
{{- with .pods.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The service's container, but for its name. */}}
{{- define "multiarch.container" -}}
{{- $values := .root.Values -}}
image: {{ include "multiarch.image" .root }}
imagePullPolicy: {{ $values.image.pullPolicy }}
args: [serve, --config=/etc/multiarch-extender/config.yaml]
env:
- name: STATE_DIRECTORY  # where what is known of images is kept
  value: /var/lib/multiarch-extender
{{- with .pods.extraEnv }}
{{ toYaml . }}
{{- end }}
ports:
{{- if eq .mode "defaultScheduler" }}
- name: scheduler  # on loopback; said here so that nothing else is placed on the port
  containerPort: 8880
  hostPort: 8880
{{- else if .webhook }}
- name: webhook
  containerPort: {{ $values.webhook.port }}
  {{- if .hostNetwork }}
  hostPort: {{ $values.webhook.port }}
  {{- end }}
{{- end }}
- name: operations  # health for the kubelet, metrics for Prometheus
  containerPort: 8881
  {{- if .hostNetwork }}
  hostPort: 8881
  {{- end }}
startupProbe:  # not /readyz: what is not ready waits for the API server, and would by no restart
  {{- include "multiarch.probe" (dict "path" "/livez" "periodSeconds" 2 "failureThreshold" 60 "given" .pods.probes.startup) | nindent 2 }}
livenessProbe:
  {{- include "multiarch.probe" (dict "path" "/livez" "given" .pods.probes.liveness) | nindent 2 }}
readinessProbe:
  {{- include "multiarch.probe" (dict "path" "/readyz" "periodSeconds" 5 "given" .pods.probes.readiness) | nindent 2 }}
# No CPU limit: throttling would show as latency in every scheduling cycle.
resources:
  {{- toYaml .pods.resources | nindent 2 }}
{{ include "multiarch.container.security" . }}
volumeMounts:
- name: state
  mountPath: /var/lib/multiarch-extender
- name: configuration
  mountPath: /etc/multiarch-extender
  readOnly: true
{{- if .selfManaged }}
- name: identity
  mountPath: /tmp
{{- end }}
{{- range include "multiarch.mounts" . | fromYamlArray }}
- name: {{ .name }}
  mountPath: {{ .path }}
  readOnly: true
{{- end }}
{{- with .pods.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A probe of the service: a dict of path, timings, and given, which are the values'. */}}
{{- define "multiarch.probe" -}}
httpGet:
  path: {{ .path }}
  port: operations
{{- with mergeOverwrite (omit . "path" "given") (.given | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Secrets and ConfigMaps that are mounted where the settings name their files: a list of name, path, volume. */}}
{{- define "multiarch.mounts" -}}
{{- $values := .root.Values -}}
{{- $etc := "/etc/multiarch-extender" -}}
{{- if and .webhook (not .selfManaged) }}
- {name: certificate, path: {{ $etc }}-tls, secret: {secretName: {{ .name }}-tls}}
{{- end }}
{{- if and .webhook $values.webhook.clientCaSecret }}
- {name: client-ca, path: {{ $etc }}-client-ca, secret: {secretName: {{ $values.webhook.clientCaSecret }}, items: [{key: ca.crt, path: ca.crt}]}}
{{- end }}
{{- with $values.store.keySecret }}
- {name: key, path: {{ $etc }}-key, secret: {secretName: {{ . }}}}
{{- end }}
{{- with $values.registries.caConfigMap }}
- {name: authorities, path: {{ $etc }}-ca, configMap: {name: {{ . }}}}
{{- end }}
{{- with $values.registries.dockerConfigSecret }}
- {name: docker-config, path: {{ $etc }}-docker, secret: {secretName: {{ . }}, items: [{key: .dockerconfigjson, path: config.json}]}}
{{- end }}
{{- if $values.registries.hosts }}
- name: hosts
  path: {{ $etc }}-hosts
  configMap:
    name: {{ include "multiarch.fullname" .root }}-hosts
    items:
    {{- range $index, $host := keys $values.registries.hosts | sortAlpha }}
    - {key: {{ $index | quote }}, path: {{ printf "%s/hosts.toml" $host | quote }}}
    {{- end }}
{{- end }}
{{- end }}

{{- define "multiarch.volumes" -}}
- name: state  # what is known of images outlives the container; registries are asked for less
  emptyDir:
    sizeLimit: 256Mi  # several times what cache.size images take
- name: configuration
  configMap:
    name: {{ .name }}
{{- if .selfManaged }}
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
{{- with .pods.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "multiarch.kube-scheduler" -}}
{{- $kubernetes := include "multiarch.kubernetes" .root -}}
- name: kube-scheduler
  {{- $image := .values.image | default (printf "registry.k8s.io/kube-scheduler:v%s" $kubernetes) }}
  image: {{ include "multiarch.image.from" (dict "root" .root "image" $image) }}  # your cluster's version
  command:
  - kube-scheduler
  - --config=/etc/multiarch-extender/scheduler.yaml
  - --feature-gates=SchedulerPopFromBackoffQ=false
  ports:
  - name: scheduler
    containerPort: 10259
  livenessProbe:
    httpGet:
      path: /livez
      port: scheduler
      scheme: HTTPS
    initialDelaySeconds: 15
  readinessProbe:
    httpGet:
      path: /readyz
      port: scheduler
      scheme: HTTPS
  # Memory grows with the cluster: it holds all nodes and pods.
  resources:
    {{- toYaml .values.resources | nindent 4 }}
  {{- include "multiarch.container.security" . | nindent 2 }}
  volumeMounts:
  - name: configuration
    mountPath: /etc/multiarch-extender
    readOnly: true
{{- end }}

{{- define "multiarch.kube-scheduler.configuration" -}}
{{- $verbs := dict "filterVerb" "filter" "preemptVerb" "preempt" "weight" 10 -}}
{{- $extender := dict "urlPrefix" "http://127.0.0.1:8880/scheduler" "nodeCacheCapable" true "ignorable" false "httpTimeout" "2s" -}}
{{- $extender = merge $extender $verbs -}}
{{- if ne "filter" (dig "placement" "preference_by" "" .settings) }}{{ $_ := set $extender "prioritizeVerb" "prioritize" }}{{ end -}}
{{- $shipped := dict "apiVersion" "kubescheduler.config.k8s.io/v1" "kind" "KubeSchedulerConfiguration" -}}
{{- $_ := set $shipped "leaderElection" (dict "leaderElect" true "resourceName" .name "resourceNamespace" .root.Release.Namespace) -}}
{{- $_ := set $shipped "profiles" (list (dict "schedulerName" .values.schedulerName)) -}}
{{- $_ := set $shipped "extenders" (list $extender) -}}
{{ mergeOverwrite $shipped (deepCopy .values.configuration) | toYaml }}
{{- end }}
