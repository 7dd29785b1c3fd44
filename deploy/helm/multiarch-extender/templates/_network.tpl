{{/* Whom our pods ask for names, and whom they connect to beside the API server and registries by TLS. */}}

{{/* Hosts that the values name, as a list of maps: value (its path), host, port, and internal: whether it is a name that
only the cluster's name service knows, for certain (yes) or by its form (likely), else empty. */}}
{{- define "multiarch.hosts" -}}
{{- $values := .root.Values -}}
{{- $named := list -}}
{{- if eq $values.store.kind "redis" -}}
{{- $named = append $named (dict "value" "store.redis.address" "text" $values.store.redis.address "port" "6379" "labels" 2) -}}
{{- end -}}
{{- range $values.extraEnv -}}
{{- if and .value (regexMatch "(?i)^(https?|all)_proxy$" .name) -}}
{{- $named = append $named (dict "value" (printf "extraEnv, %s" .name) "text" .value "port" "80" "labels" 2) -}}
{{- end -}}
{{- end -}}
{{- range $host, $text := $values.registries.hosts -}}
{{- range prepend (regexFindAll "https?://[^/\"'\\s]+" $text -1) $host -}}
{{- $named = append $named (dict "value" "registries.hosts" "text" . "port" (ternary "80" "443" (hasPrefix "http://" .)) "labels" (ternary 2 1 (regexMatch "^http://|:[0-9]+$" .))) -}}
{{- end -}}
{{- end -}}
{{- $registry := (include "multiarch.settings.own" . | fromYaml).registry | default dict -}}
{{- range $registry.plain_http -}}
{{- $named = append $named (dict "value" "config.registry.plain_http" "text" . "port" "80" "labels" 2) -}}
{{- end -}}
{{- range $registry.allow -}}
{{- $named = append $named (dict "value" "config.registry.allow" "text" . "port" "443" "labels" 1) -}}
{{- end -}}
{{- $found := list -}}
{{- range $named -}}
{{- $authority := regexReplaceAll "^[a-zA-Z]+://" .text "" | regexFind "^[^/?#]*" | splitList "@" | last -}}
{{- $host := regexReplaceAll ":[0-9]*$" $authority "" | trimSuffix "." | lower -}}
{{- $port := regexFind ":[0-9]+$" $authority | trimPrefix ":" | default .port -}}
{{- $internal := "" -}}
{{- if regexMatch "\\.svc(\\.|$)|\\.cluster\\.local$" $host -}}
{{- $internal = "yes" -}}
{{- else if and (regexMatch "^[a-z0-9-]+(\\.[a-z0-9-]+)*$" $host) (not (regexMatch "^[0-9.]+$" $host)) (le (len (splitList "." $host)) .labels) -}}
{{- $internal = "likely" -}}
{{- end -}}
{{- $found = append $found (dict "value" .value "host" $host "port" $port "internal" $internal) -}}
{{- end -}}
{{ toYaml $found }}
{{- end }}

{{- define "multiarch.pod.names" -}}
{{- $internal := eq "openshift" (dig "registry" "mirrors" "" (include "multiarch.settings.own" . | fromYaml)) -}}
{{- range include "multiarch.hosts" . | fromYamlArray }}{{ if .internal }}{{ $internal = true }}{{ end }}{{ end -}}
{{- $policy := .root.Values.dnsPolicy | default (ternary "ClusterFirst" "Default" $internal) -}}
{{- $hostNetwork := or (eq .mode "defaultScheduler") (and .root.Values.webhook.hostNetwork (include "multiarch.has-webhook" .)) -}}
{{- if eq $policy "Default" -}}
# The node's own name service, by which the container runtime finds the registries too; no need of CoreDNS.
dnsPolicy: Default
{{- else -}}
dnsPolicy: {{ if $hostNetwork }}ClusterFirstWithHostNet{{ else }}ClusterFirst{{ end }}  # names of this cluster too
{{- end -}}
{{- end }}

{{- define "multiarch.checks.names" -}}
{{- if eq .root.Values.dnsPolicy "Default" -}}
{{- range include "multiarch.hosts" . | fromYamlArray -}}
{{- if eq .internal "yes" -}}
{{- include "multiarch.refuse" (printf "dnsPolicy: with Default our pods ask the node's name service, which does not know %s (%s). Leave it out, or set it to ClusterFirst." .host .value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What the policy for egress would cut off: `more` has to have a rule with that port, or one for all ports. */}}
{{- define "multiarch.checks.egress" -}}
{{- $egress := .root.Values.networkPolicy.egress -}}
{{- if $egress.enabled -}}
{{- $ports := list -}}
{{- $all := false -}}
{{- range $egress.more -}}
{{- if not .ports }}{{ $all = true }}{{ end -}}
{{- range .ports }}{{ if hasKey . "port" }}{{ $ports = append $ports (toString .port) }}{{ else }}{{ $all = true }}{{ end }}{{ end -}}
{{- end -}}
{{- $wanted := list -}}
{{- range include "multiarch.hosts" . | fromYamlArray -}}
{{- if or (ne .port "443") (eq .internal "yes") (regexMatch "^(10|127|169\\.254|192\\.168|172\\.(1[6-9]|2[0-9]|3[01]))\\." .host) -}}
{{- if and .host (ne .value "config.registry.allow") }}{{ $wanted = append $wanted . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $annotations := .root.Values.serviceAccount.annotations -}}
{{- range dig "registry" "clouds" list (include "multiarch.settings.own" . | fromYaml) -}}
{{- $byToken := dict "ecr" "eks.amazonaws.com/role-arn" "acr" "azure.workload.identity/client-id" -}}
{{- if not (hasKey $annotations (get $byToken .)) -}}
{{- $wanted = append $wanted (dict "value" (printf "config.registry.clouds, %s" .) "host" "the cloud's metadata service, such as 169.254.169.254," "port" "80") -}}
{{- end -}}
{{- end -}}
{{- range $wanted -}}
{{- if not (or $all (has .port $ports)) -}}
{{- include "multiarch.refuse" (printf "networkPolicy.egress: it would keep our pods from %s on port %s (%s). Add a rule with that port to networkPolicy.egress.more, such as {to: [{ipBlock: {cidr: ADDRESS/32}}], ports: [{protocol: TCP, port: %s}]}." .host .port .value .port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
