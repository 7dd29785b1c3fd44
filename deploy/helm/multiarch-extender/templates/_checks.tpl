{{/* Combinations of values that cannot work, refused with what would be right. The schema judges single values. */}}

{{- define "multiarch.refuse" -}}
{{- fail (printf "\n\n%s\n" .) -}}
{{- end }}

{{- define "multiarch.checks" -}}
{{- $modes := .Values.modes -}}
{{- $webhooks := include "multiarch.has-webhooks" . -}}
{{- if not (or $modes.webhook.enabled $modes.policy.enabled $modes.secondScheduler.enabled $modes.defaultScheduler.enabled) -}}
{{- include "multiarch.refuse" "modes: nothing would run. Set one of modes.webhook.enabled, modes.policy.enabled, modes.secondScheduler.enabled and modes.defaultScheduler.enabled to true." -}}
{{- end -}}
{{- include "multiarch.checks.image" .Values -}}
{{- include "multiarch.checks.metadata" .Values -}}
{{- include "multiarch.checks.policy" . -}}
{{- if and $modes.defaultScheduler.enabled (regexMatch "-(eks|gke)" .Capabilities.KubeVersion.Version) -}}
{{- include "multiarch.refuse" (printf "modes.defaultScheduler.enabled: this cluster (%s) is a vendor's, whose kube-scheduler takes no configuration of yours. Use modes.webhook or modes.secondScheduler." .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- include "multiarch.checks.forms" .Values -}}
{{- include "multiarch.checks.webhook" (dict "values" .Values "webhooks" $webhooks) -}}
{{- include "multiarch.checks.network" . -}}
{{- include "multiarch.checks.certificates" .Values.certificates -}}
{{- include "multiarch.checks.store" .Values.store -}}
{{- $names := dict -}}
{{- range $mode := include "multiarch.modes" . | fromYamlArray -}}
{{- $part := merge (dict "root" $ "values" (get $modes $mode)) (include (printf "multiarch.part.%s" $mode) $ | fromYaml) -}}
{{- include "multiarch.checks.settings" $part -}}
{{- include "multiarch.checks.canary" $part -}}
{{- include "multiarch.checks.names" $part -}}
{{- include "multiarch.checks.egress" $part -}}
{{- $name := include "multiarch.name" $part -}}
{{- if hasKey $names $name -}}
{{- include "multiarch.refuse" (printf "modes.%s.name: %q is the name of modes.%s too; give each part one of its own." $mode $name (get $names $name)) -}}
{{- end -}}
{{- $_ := set $names $name $mode -}}
{{- end -}}
{{- end }}

{{/* Where nodes pull our image from. */}}
{{- define "multiarch.checks.image" -}}
{{- if not (or .global.imageRegistry .image.registry (contains "/" .image.name) (eq .image.pullPolicy "Never")) -}}
{{- include "multiarch.refuse" "image.registry: no public registry has the service's image. Build it (docs/how-to/build-the-image.md), and set image.registry and image.name." -}}
{{- end -}}
{{- end }}

{{/* Labels and annotations that are the chart's own. */}}
{{- define "multiarch.checks.metadata" -}}
{{- $selecting := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- $common := concat $selecting (list "pod-security.kubernetes.io/enforce" "kubernetes.io/metadata.name") -}}
{{- range $path, $reserved := dict "commonLabels" $common "podLabels" $selecting "podAnnotations" (list "checksum/configuration") -}}
{{- range $reserved -}}
{{- if hasKey (get $ $path) . -}}
{{- include "multiarch.refuse" (printf "%s: the chart decides %s, by which it finds its pods and namespaces, or makes new ones. Leave it out, or choose another key." $path .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A policy of the API server that adds gates. */}}
{{- define "multiarch.checks.policy" -}}
{{- $policy := .Values.modes.policy -}}
{{- if and $policy.enabled (not (semverCompare ">=1.36.0-0" (include "multiarch.kubernetes" .))) -}}
{{- include "multiarch.refuse" (printf "modes.policy.enabled: this cluster (%s) does not serve MutatingAdmissionPolicy, which Kubernetes has from 1.36 on. Use modes.webhook with config.admission.unknown gate, which holds pods whose images are not known." .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $second := .Values.modes.secondScheduler -}}
{{- if and $second.enabled (eq $second.outage.namedBy "policy") (not (semverCompare ">=1.36.0-0" (include "multiarch.kubernetes" .))) -}}
{{- include "multiarch.refuse" (printf "modes.secondScheduler.outage.namedBy: this cluster (%s) does not serve MutatingAdmissionPolicy, which Kubernetes has from 1.36 on. Use webhook in place of policy." .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and $second.enabled (eq $second.outage.namedBy "webhook") (not $second.webhook) -}}
{{- include "multiarch.refuse" "modes.secondScheduler.outage.namedBy: webhook needs the listener of modes.secondScheduler.webhook. Set that to true, or use policy." -}}
{{- end -}}
{{- if and $policy.enabled .Values.modes.webhook.enabled -}}
{{- range $name := list "name" "config" -}}
{{- if get $policy $name -}}
{{- include "multiarch.refuse" (printf "modes.policy.%s: the pods of modes.webhook let held pods go, and this part has none of its own. Use modes.webhook.%s, or leave modes.webhook out." $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Forms of single values, which the schema could only show as patterns. */}}
{{- define "multiarch.checks.forms" -}}
{{- range $path, $digest := dict "image.digest" .image.digest "modes.secondScheduler.image.digest" .modes.secondScheduler.image.digest -}}
{{- if and $digest (not (regexMatch "^sha256:[0-9a-f]{64}$" $digest)) -}}
{{- include "multiarch.refuse" (printf "%s: %q is no digest, which is sha256: and 64 hexadecimal digits. A tag goes to %s." $path $digest (replace "digest" "tag" $path)) -}}
{{- end -}}
{{- end -}}
{{- if and .webhook.url (not (regexMatch "^https://[^/?#]+$" .webhook.url)) -}}
{{- include "multiarch.refuse" (printf "webhook.url: %q is not https://host or https://host:port; the API server speaks TLS only, and the chart adds the path." .webhook.url) -}}
{{- end -}}
{{- range $path, $addresses := dict "ingress" .networkPolicy.ingress.apiServer "egress" .networkPolicy.egress.apiServer -}}
{{- range $addresses -}}
{{- if not (regexMatch "^[0-9a-fA-F.:]+/[0-9]{1,3}$" .) -}}
{{- include "multiarch.refuse" (printf "networkPolicy.%s.apiServer: %q is no CIDR. One address is written 192.0.2.1/32, or 2001:db8::1/128." $path .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq .modes.secondScheduler.schedulerName "default-scheduler" -}}
{{- include "multiarch.refuse" "modes.secondScheduler.schedulerName: default-scheduler is the cluster's own, and two schedulers would place the same pods. Choose another name, such as multiarch-scheduler." -}}
{{- end -}}
{{- end }}

{{- define "multiarch.checks.webhook" -}}
{{- $webhook := .values.webhook -}}
{{- if and $webhook.hostNetwork (eq (int $webhook.port) 10250) -}}
{{- include "multiarch.refuse" "webhook.hostNetwork: port 10250 of a node is its kubelet's. Choose another one as webhook.port, such as 9443, and let the API server reach it." -}}
{{- end -}}
{{- if has (int $webhook.port) (list 8880 8881 10259) -}}
{{- include "multiarch.refuse" (printf "webhook.port: %d is taken in our pods (8880 scheduler verbs, 8881 health and metrics, 10259 kube-scheduler). Choose another one, such as 10250." (int $webhook.port)) -}}
{{- end -}}
{{- if and $webhook.hostNetwork .values.modes.secondScheduler.enabled -}}
{{- include "multiarch.refuse" "webhook.hostNetwork: kube-scheduler's port 10259 would meet that of the node's own, and the scheduler verbs would be open to every process of the node. Run modes.secondScheduler without it, or modes.webhook alone with it." -}}
{{- end -}}
{{- if and $webhook.hostNetwork .values.modes.defaultScheduler.enabled -}}
{{- include "multiarch.refuse" "webhook.hostNetwork: ports 8880 and 8881 of control-plane nodes are those of modes.defaultScheduler. Install the two as releases of their own, on nodes of their own, or leave hostNetwork out." -}}
{{- end -}}
{{- if and $webhook.clientCaSecret (not .webhooks) -}}
{{- include "multiarch.refuse" "webhook.clientCaSecret: no webhook is on. Set modes.webhook.enabled, or leave the Secret out." -}}
{{- end -}}
{{- if and $webhook.url (.values.modes.webhook.enabled) .values.modes.secondScheduler.enabled .values.modes.secondScheduler.webhook -}}
{{- include "multiarch.refuse" "webhook.url: two webhooks are on (modes.webhook and modes.secondScheduler.webhook), and one address cannot be both. Switch one off." -}}
{{- end -}}
{{- end }}

{{- define "multiarch.checks.network" -}}
{{- $policy := .Values.networkPolicy -}}
{{- if and $policy.ingress.enabled (include "multiarch.has-webhooks" .) (not $policy.ingress.apiServer) -}}
{{- include "multiarch.refuse" "networkPolicy.ingress.apiServer: name the addresses from which the API server connects, such as [10.0.0.0/28]; without them it reaches no webhook." -}}
{{- end -}}
{{- if and $policy.egress.enabled (not $policy.egress.apiServer) -}}
{{- include "multiarch.refuse" "networkPolicy.egress.apiServer: name the API server's addresses, as `kubectl get endpointslices -l kubernetes.io/service-name=kubernetes` shows them, such as [192.0.2.1/32]; without them the service never becomes ready." -}}
{{- end -}}
{{- if and $policy.ingress.enabled .Values.webhook.hostNetwork -}}
{{- include "multiarch.refuse" "networkPolicy.ingress: a policy does not bind pods on the host's network (webhook.hostNetwork), so it would prove nothing about who asks. Use one of the two." -}}
{{- end -}}
{{- $only := and .Values.modes.defaultScheduler.enabled (not .Values.modes.webhook.enabled) (not .Values.modes.policy.enabled) (not .Values.modes.secondScheduler.enabled) -}}
{{- if and $only (or $policy.ingress.enabled $policy.egress.enabled) -}}
{{- include "multiarch.refuse" "networkPolicy: the pods of modes.defaultScheduler are on the host's network, which no policy binds. Leave it out, or add modes.webhook." -}}
{{- end -}}
{{- end }}

{{- define "multiarch.checks.certificates" -}}
{{- if and .caBundle (ne .source "existingSecret") -}}
{{- include "multiarch.refuse" (printf "certificates.caBundle: with certificates.source %s the authority is found by itself. Leave it out, or set certificates.source to existingSecret." .source) -}}
{{- end -}}
{{- if and .caBundle (not (contains "-----BEGIN CERTIFICATE-----" .caBundle)) -}}
{{- include "multiarch.refuse" "certificates.caBundle: not PEM; it begins with -----BEGIN CERTIFICATE-----, not in base64." -}}
{{- end -}}
{{- if and .certManager.issuerRef.name (ne .source "certManager") -}}
{{- include "multiarch.refuse" (printf "certificates.certManager.issuerRef.name: certificates.source is %s. Set it to certManager, or leave the issuer out." .source) -}}
{{- end -}}
{{- end }}

{{- define "multiarch.checks.store" -}}
{{- if and (eq .kind "redis") (not .redis.address) -}}
{{- include "multiarch.refuse" "store.redis.address: with store.kind redis say where it is, such as redis.example.com:6379." -}}
{{- end -}}
{{- if and .redis.address (ne .kind "redis") -}}
{{- include "multiarch.refuse" (printf "store.redis.address: store.kind is %s. Set it to redis, or leave the address out." .kind) -}}
{{- end -}}
{{- if and .redis.caSecret (not .redis.tls) -}}
{{- include "multiarch.refuse" "store.redis.caSecret: authorities are for TLS. Set store.redis.tls to true, or leave the Secret out." -}}
{{- end -}}
{{- end }}

{{/* Settings that the chart decides, and what to use instead; then those that do not go together. */}}
{{- define "multiarch.checks.settings" -}}
{{- $own := include "multiarch.settings.own" . | fromYaml -}}
{{- $mode := .mode -}}
{{- range $path, $instead := include "multiarch.decided" . | fromYaml -}}
{{- $parts := splitList "." $path -}}
{{- $section := $own -}}
{{- range initial $parts -}}{{- $section = get $section . | default dict -}}{{- end -}}
{{- if hasKey $section (last $parts) -}}
{{- include "multiarch.refuse" (printf "config.%s (for modes.%s): the chart decides it. %s" $path $mode $instead) -}}
{{- end -}}
{{- end -}}
{{- $settings := include "multiarch.settings" . | fromYaml -}}
{{- if include "multiarch.has-webhook" . -}}
{{- $wait := include "multiarch.wait" . | float64 -}}
{{- $timeout := .root.Values.webhook.timeoutSeconds | float64 -}}
{{- if ge $wait $timeout -}}
{{- include "multiarch.refuse" (printf "webhook.timeoutSeconds: %v s is not more than config.admission.wait_seconds (%v s), so the API server would give up before the service answers. Raise the one or lower the other." $timeout $wait) -}}
{{- end -}}
{{- end -}}
{{- $unknown := dig "admission" "unknown" "gate" $own -}}
{{- if and (include "multiarch.has-policy" .) (ne $unknown "gate") -}}
{{- include "multiarch.refuse" (printf "config.admission.unknown (for modes.%s): with modes.policy every pod is held until its images are known, so it is gate and not %s. Leave it out; config.scheduler.unknown says what follows after limit_seconds." $mode $unknown) -}}
{{- end -}}
{{- if and (include "multiarch.shares-gates" .) (ne $unknown "gate") -}}
{{- include "multiarch.refuse" (printf "config.admission.unknown (for modes.secondScheduler): %s would let pods of its namespaces go that %s holds, since its webhook sees them too. Leave it out, or set modes.secondScheduler.webhook to false." $unknown (ternary "modes.policy" "modes.webhook" .root.Values.modes.policy.enabled)) -}}
{{- end -}}
{{- if and (eq $mode "webhook") (not (include "multiarch.has-gates" .)) -}}
{{- $second := .root.Values.modes.secondScheduler -}}
{{- $its := dig "admission" "unknown" "pass" (include "multiarch.settings.own" (dict "root" .root "values" $second) | fromYaml) -}}
{{- if and $second.enabled $second.webhook (eq $its "gate") -}}
{{- include "multiarch.refuse" "modes.secondScheduler.config.admission.unknown: modes.webhook sees these pods too, and would let them go that gate holds. Set config.admission.unknown to gate, for both parts, or leave it out." -}}
{{- end -}}
{{- end -}}
{{- if and (eq $mode "defaultScheduler") (eq (dig "scheduler" "pending" "" $settings) "retry") -}}
{{- include "multiarch.refuse" "config.scheduler.pending: retry protects nobody in modes.defaultScheduler, whose extender is ignorable: kube-scheduler takes the error for an outage, and every node passes. Use assume or pass, or set it in modes.secondScheduler.config alone." -}}
{{- end -}}
{{- if and (eq $mode "defaultScheduler") (eq (dig "scheduler" "unknown" "" $settings) "retry") -}}
{{- include "multiarch.refuse" "config.scheduler.unknown: retry protects nobody in modes.defaultScheduler, whose extender is ignorable. Use assume or pass, or set it in modes.secondScheduler.config alone." -}}
{{- end -}}
{{- end }}

{{/* Whether webhook and policy select the canary's namespace, which the chart labels so that they do. */}}
{{- define "multiarch.checks.canary" -}}
{{- if include "multiarch.has-canary" . -}}
{{- $canary := include "multiarch.canary" . -}}
{{- $without := printf "in %s dry runs show that the %s. " $canary (ternary "policy works" "webhook is reached" (eq .mode "policy")) -}}
{{- $labels := merge (dict "kubernetes.io/metadata.name" $canary) (include "multiarch.canary.labels" . | fromYaml) -}}
{{- range include "multiarch.canary.requirements" . | fromYamlArray -}}
{{- $has := hasKey $labels .key -}}
{{- $in := and $has (has (get $labels .key) (.values | default list)) -}}
{{- if not (get (dict "In" $in "NotIn" (not $in) "Exists" $has "DoesNotExist" (not $has)) .operator) -}}
{{- $what := printf "it asks for %s %s [%s], which no label of the chart can meet" .key .operator (.values | default list | join ", ") -}}
{{- $advice := "Change it" -}}
{{- if and (eq .key "kubernetes.io/metadata.name") (eq .operator "In") -}}
{{- $what = printf "it selects namespaces by name, and not %s" $canary -}}
{{- $advice = printf "Add that name ({matchExpressions: [{key: %s, operator: In, values: [%s, %s]}]})" .key (join ", " .values) $canary -}}
{{- end -}}
{{- include "multiarch.refuse" (printf "modes.%s.namespaceSelector: %s; %s%s, or set canary.enabled to false." .mode $what $without $advice) -}}
{{- end -}}
{{- end -}}
{{- if has $canary .root.Values.webhook.excludeNamespaces -}}
{{- include "multiarch.refuse" (printf "webhook.excludeNamespaces: %sLeave it out, or set canary.enabled to false." $without) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "multiarch.decided" -}}
admission.listen: Use webhook.port, and modes.*.enabled.
admission.gate.exempt_priority_classes: Use gates.exemptPriorityClasses, which the policy heeds too.
admission.gate.policy: The chart makes it; modes.policy.enabled says whether.
admission.tls: Use certificates.source and webhook.clientCaSecret.
admission.guard_daemon_sets: Use modes.webhook.workloads.
admission.canary_namespace: The chart makes it, of the part's name; canary.enabled says whether.
{{- if include "multiarch.is-self-managed" . }}
admission.self_managed.secret: The chart makes it, of the part's name.
admission.self_managed.configurations: The chart makes it, of the part's name.
admission.self_managed.names: Use webhook.url.
{{- else }}
admission.self_managed: Its certificate comes by certificates.source, which is not selfManaged, or it has no webhook.
{{- end }}
scheduler.listen: kube-scheduler and the chart's files name 127.0.0.1:8880.
operations.listen: Probes and monitors of the chart ask port 8881.
cluster: It is the cluster that the chart is installed in.
cache.url: Use store.kind.
cache.key_file: Use store.keySecret.
registry.ca_files: Use registries.caConfigMap.
{{- if .root.Values.registries.hosts }}
registry.mirrors: It is the folder that registries.hosts makes.
{{- end }}
registry.docker_config: Use registries.dockerConfigSecret.
{{- if eq .mode "secondScheduler" }}
admission.scheduler_name: Use modes.secondScheduler.schedulerName.
{{- end }}
{{- end }}
