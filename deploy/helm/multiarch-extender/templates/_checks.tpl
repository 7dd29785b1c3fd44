{{/* Combinations of values that cannot work, refused with what would be right. The schema judges single values, and the
service its settings (`multiarch-extender config --check`). */}}

{{- define "multiarch.checks" -}}
{{- include "multiarch.parts" . -}}
{{- $values := .Values -}}
{{- $modes := $values.modes -}}
{{- $hook := $values.webhook -}}
{{- $second := $modes.secondScheduler -}}
{{- $certificates := $values.certificates -}}
{{- $ingress := $values.networkPolicy.ingress -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- $old := semverCompare "<1.36.0-0" (include "multiarch.kubernetes" .) -}}
{{- $port := int $hook.port -}}
{{- $wait := dig "admission" "wait_seconds" 1.5 $values.config | float64 -}}
{{- $unknown := dig "admission" "unknown" "gate" $values.config -}}
{{- $retries := or (eq "retry" (dig "scheduler" "pending" "" $values.config)) (eq "retry" (dig "scheduler" "unknown" "" $values.config)) -}}
{{- $webhooks := 0 -}}
{{- $pods := 0 -}}
{{- $unlabelled := false -}}
{{- if $modes.defaultScheduler.enabled -}}{{/* without a cluster, as in `helm template`, there are no nodes to see */}}
{{- $nodes := (lookup "v1" "Node" "" "").items -}}
{{- $unlabelled = not (empty $nodes) -}}
{{- range $nodes }}{{ if hasKey (.metadata.labels | default dict) $modes.defaultScheduler.nodeLabel }}{{ $unlabelled = false }}{{ end }}{{ end -}}
{{- end -}}
{{- range .parts }}{{ if .webhook }}{{ $webhooks = add $webhooks 1 }}{{ end }}{{ if ne .mode "defaultScheduler" }}{{ $pods = add $pods 1 }}{{ end }}{{ end -}}
{{- $refusals := list
  (list (not .parts) "modes: nothing would run. Set one of modes.webhook.enabled, modes.policy.enabled, modes.secondScheduler.enabled and modes.defaultScheduler.enabled to true.")
  (list (and (not $values.image.repository) (or .Release.IsInstall .Release.IsUpgrade)) "image.repository: no public registry has the service's image. Build it (docs/how-to/install-with-helm.md), and say where it is, such as registry.example.com/multiarch-extender.")
  (list (and $modes.policy.enabled $old) (printf "modes.policy.enabled: this cluster (%s) does not serve MutatingAdmissionPolicy, which Kubernetes has from 1.36 on. Use modes.webhook with config.admission.unknown gate, which holds pods whose images are not known." $version))
  (list (and $modes.policy.enabled (ne $unknown "gate")) (printf "config.admission.unknown: with modes.policy every pod is held until its images are known, so it is gate and not %s. Leave it out; config.scheduler.unknown says what follows after limit_seconds." $unknown))
  (list (and $second.enabled $second.namingPolicy $old) (printf "modes.secondScheduler.namingPolicy: this cluster (%s) does not serve MutatingAdmissionPolicy, which Kubernetes has from 1.36 on. Leave it out." $version))
  (list (eq $second.schedulerName "default-scheduler") "modes.secondScheduler.schedulerName: default-scheduler is the cluster's own, and two schedulers would place the same pods. Choose another name, such as multiarch-scheduler.")
  (list (and $second.enabled $second.webhook (hasKey ($values.config.admission | default dict) "scheduler_name")) "config.admission.scheduler_name: the chart decides it. Use modes.secondScheduler.schedulerName.")
  (list (and $modes.defaultScheduler.enabled (regexMatch "-(eks|gke)" $version)) (printf "modes.defaultScheduler.enabled: this cluster (%s) is a vendor's, whose kube-scheduler takes no configuration of yours. Use modes.webhook or modes.secondScheduler." $version))
  (list $unlabelled (printf "modes.defaultScheduler.nodeLabel: no node has the label %s, so no pod of ours would run beside kube-scheduler. Name a label of the nodes that it runs on; where the control plane is a vendor's, use modes.webhook or modes.secondScheduler." $modes.defaultScheduler.nodeLabel))
  (list (and $modes.defaultScheduler.enabled $retries) "config.scheduler: retry protects nobody in modes.defaultScheduler, whose extender is ignorable: kube-scheduler takes the error for an outage, and every node passes. Use assume or pass as pending and unknown, or make modes.secondScheduler a release of its own.")
  (list (and $modes.policy.enabled (not (include "multiarch.probe.namespace" .))) "probeNamespace: the policy comes into force once a dry run was held, in a namespace that namespaceSelector selects and excludeNamespaces does not leave out. Name one of those.")
  (list (has $values.probeNamespace (splitList ", " (include "multiarch.never" .))) (printf "probeNamespace: the pods of %s are never touched, and dry runs there show nothing. Choose another namespace." $values.probeNamespace))
  (list (and $hook.hostNetwork (eq $port 10250)) "webhook.hostNetwork: port 10250 of a node is its kubelet's. Choose another one as webhook.port, such as 9443, and let the API server reach it.")
  (list (has $port (list 8880 8881 10259)) (printf "webhook.port: %d is taken in our pods (8880 scheduler verbs, 8881 health and metrics, 10259 kube-scheduler). Choose another one, such as 10250." $port))
  (list (and $hook.hostNetwork $second.enabled) "webhook.hostNetwork: kube-scheduler's port 10259 would meet that of the node's own, and the scheduler verbs would be open to every process of the node. Run modes.secondScheduler without it, or modes.webhook alone with it.")
  (list (and $hook.hostNetwork $modes.defaultScheduler.enabled) "webhook.hostNetwork: ports 8880 and 8881 of control-plane nodes are those of modes.defaultScheduler. Install the two as releases of their own, on nodes of their own, or leave hostNetwork out.")
  (list (and $hook.clientCaSecret (not $webhooks)) "webhook.clientCaSecret: no webhook is on. Set modes.webhook.enabled, or leave the Secret out.")
  (list (and $hook.url (gt (int $webhooks) 1)) "webhook.url: two webhooks are on (modes.webhook and modes.secondScheduler.webhook), and one address cannot be both. Switch one off.")
  (list (and $webhooks (ge $wait (float64 $hook.timeoutSeconds))) (printf "webhook.timeoutSeconds: %v s is not more than config.admission.wait_seconds (%v s), so the API server would give up before the service answers. Raise the one or lower the other." $hook.timeoutSeconds $wait))
  (list (and $certificates.caBundle (ne $certificates.source "existingSecret")) (printf "certificates.caBundle: with certificates.source %s the authority is found by itself. Leave it out, or set certificates.source to existingSecret." $certificates.source))
  (list (and $certificates.certManager.issuerRef.name (ne $certificates.source "certManager")) (printf "certificates.certManager.issuerRef.name: certificates.source is %s. Set it to certManager, or leave the issuer out." $certificates.source))
  (list (and $ingress.enabled $webhooks (not $ingress.apiServer)) "networkPolicy.ingress.apiServer: name the addresses from which the API server connects, such as [10.0.0.0/28]; without them it reaches no webhook.")
  (list (and $ingress.enabled (or $hook.hostNetwork (not $pods))) "networkPolicy.ingress: no policy binds pods on the host's network (webhook.hostNetwork, modes.defaultScheduler), so it would prove nothing about who asks. Use one of the two.")
-}}
{{- range $refusals }}{{ if first . }}{{ include "multiarch.refuse" (last .) }}{{ end }}{{ end -}}
{{- include "multiarch.checks.metadata" $values -}}
{{- range values $values.overrides }}{{ include "multiarch.checks.metadata" . }}{{ end -}}
{{- $accounts := list -}}
{{- range .parts -}}
{{- if has .account $accounts }}{{ include "multiarch.refuse" (printf "serviceAccount.name: two parts would have the account %s, and each the rights of both. Name one for each, as overrides.%s.serviceAccount.name." .account .mode) }}{{ end -}}
{{- $accounts = append $accounts .account -}}
{{- end -}}
{{- range $path, $instead := include "multiarch.decided" . | fromYaml -}}
{{- $section := $values.config -}}
{{- range initial (splitList "." $path) }}{{ $section = get $section . | default dict }}{{ end -}}
{{- if hasKey $section (last (splitList "." $path)) -}}
{{- include "multiarch.refuse" (printf "config.%s: the chart decides it. %s" $path $instead) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "multiarch.refuse" -}}
{{- fail (printf "\n\n%s\n" .) -}}
{{- end }}

{{/* Labels and annotations that are the chart's own. */}}
{{- define "multiarch.checks.metadata" -}}
{{- $selecting := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- $common := concat $selecting (list "app.kubernetes.io/version" "helm.sh/chart" "pod-security.kubernetes.io/enforce" "kubernetes.io/metadata.name") -}}
{{- range $path, $reserved := dict "commonLabels" $common "podLabels" $selecting "podAnnotations" (list "checksum/configuration") -}}
{{- range $reserved -}}
{{- if hasKey (get $ $path | default dict) . -}}
{{- include "multiarch.refuse" (printf "%s: the chart decides %s, by which it finds its pods and namespaces, or makes new ones. Leave it out, or choose another key." $path .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Settings that the chart decides, and what to use instead. */}}
{{- define "multiarch.decided" -}}
admission.listen: Use webhook.port, and modes.*.enabled.
admission.tls: Use certificates.source and webhook.clientCaSecret.
admission.guard_daemon_sets: Use modes.webhook.workloads.
admission.gate.probe_namespace: Use probeNamespace.
admission.gate.policy: The chart makes it; modes.policy.enabled says whether.
admission.gate.lease: The chart makes it, of the release's name.
scheduler.listen: kube-scheduler and the chart's files name 127.0.0.1:8880.
operations.listen: Probes and monitors of the chart ask port 8881.
cluster: It is the cluster that the chart is installed in.
cache.key_file: Use store.keySecret.
registry.ca_files: Use registries.caConfigMap.
registry.docker_config: Use registries.dockerConfigSecret.
{{- if .Values.registries.hosts }}
registry.mirrors: It is the folder that registries.hosts makes.
{{- end }}
{{- end }}
