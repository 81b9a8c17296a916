{{- define "rollfleet.name" -}}
{{- if contains "rollfleet" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-rollfleet" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* For objects without a namespace: releases in two namespaces must not share them. */ -}}
{{- define "rollfleet.clusterName" -}}{{ include "rollfleet.name" . }}-{{ .Release.Namespace }}{{- end }}

{{- define "rollfleet.nats" -}}{{ include "rollfleet.name" . }}-nats{{- end }}
{{- define "rollfleet.keys" -}}{{ include "rollfleet.nats" . }}-keys{{- end }}
{{- define "rollfleet.certificate" -}}{{ .Values.nats.tls.existingSecret | default (printf "%s-tls" (include "rollfleet.nats" .)) }}{{- end }}
{{- define "rollfleet.account" -}}{{ .Values.serviceAccount.name | default (include "rollfleet.name" .) }}{{- end }}

{{- /* Labels of all objects; the argument is the component. Call with (list . "operator"). */ -}}
{{- define "rollfleet.labels" -}}
{{ include "rollfleet.selector" . }}
{{- with index . 0 }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
{{- end }}

{{- define "rollfleet.selector" -}}
app.kubernetes.io/name: rollfleet
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* Call with (list . .Values.operator.image). */ -}}
{{- define "rollfleet.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 -}}
{{- with $root.Values.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* Where NATS is, as entries of a NetworkPolicy's `to`, in JSON; `[]`: it may be anywhere. */ -}}
{{- define "rollfleet.natsTo" -}}
{{- if .Values.nats.enabled }}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) }}
{{- $pods := dict "matchLabels" (include "rollfleet.selector" (list . "nats") | fromYaml) }}
{{- list (dict "namespaceSelector" $namespace "podSelector" $pods) | toJson }}
{{- else }}
{{- .Values.networkPolicy.natsTo | toJson }}
{{- end }}
{{- end }}

{{- /* The rule that lets a pod ask name servers. */ -}}
{{- define "rollfleet.dns" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
  {{- with .Values.networkPolicy.dnsTo }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- /* The URL of NATS for all pods. */ -}}
{{- define "rollfleet.url" -}}
{{- if .Values.nats.enabled -}}
{{ ternary "tls" "nats" .Values.nats.tls.enabled }}://{{ include "rollfleet.nats" . }}.{{ .Release.Namespace }}.svc:4222
{{- else -}}
{{ required "nats.external.url: set it to the URL of your NATS, or set nats.enabled=true" .Values.nats.external.url }}
{{- end -}}
{{- end }}

{{- /* The Secret with ca.crt; empty: the certificate is public, or TLS is off. */ -}}
{{- define "rollfleet.ca" -}}
{{- if .Values.nats.enabled }}{{ if .Values.nats.tls.enabled }}{{ include "rollfleet.certificate" . }}{{ end }}
{{- else if .Values.nats.external.ca }}{{ .Values.nats.external.secret }}{{ end -}}
{{- end }}

{{- /* The settings of pods and containers for Pod Security "restricted". */ -}}
{{- define "rollfleet.podSecurity" -}}
runAsNonRoot: true
{{- if .Values.fixedUser }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "rollfleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The placement of a pod. Call with .Values.operator. */ -}}
{{- define "rollfleet.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}
