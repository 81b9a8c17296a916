{{- define "rollfleet.name" -}}
{{- if contains "rollfleet" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-rollfleet" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* Of what is in no namespace: two releases in two namespaces must not meet there. */ -}}
{{- define "rollfleet.clusterName" -}}{{ include "rollfleet.name" . }}-{{ .Release.Namespace }}{{- end }}

{{- define "rollfleet.nats" -}}{{ include "rollfleet.name" . }}-nats{{- end }}
{{- define "rollfleet.keys" -}}{{ include "rollfleet.nats" . }}-keys{{- end }}
{{- define "rollfleet.certificate" -}}{{ .Values.nats.tls.existingSecret | default (printf "%s-tls" (include "rollfleet.nats" .)) }}{{- end }}
{{- define "rollfleet.account" -}}{{ .Values.serviceAccount.name | default (include "rollfleet.name" .) }}{{- end }}

{{- /* Labels of everything; `component` tells what it belongs to. Call with (list . "operator"). */ -}}
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
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* Call with (list . .Values.operator.image). */ -}}
{{- define "rollfleet.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 -}}
{{- with $root.Values.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{- /* Where NATS is, for every pod of the cluster. */ -}}
{{- define "rollfleet.url" -}}
{{- if .Values.nats.enabled -}}
{{ ternary "tls" "nats" .Values.nats.tls.enabled }}://{{ include "rollfleet.nats" . }}.{{ .Release.Namespace }}.svc:4222
{{- else -}}
{{ required "nats.external.url: name the NATS to use, or set nats.enabled=true" .Values.nats.external.url }}
{{- end -}}
{{- end }}

{{- /* The Secret that holds ca.crt; empty: the certificate is public, or there is none. */ -}}
{{- define "rollfleet.ca" -}}
{{- if .Values.nats.enabled }}{{ if .Values.nats.tls.enabled }}{{ include "rollfleet.certificate" . }}{{ end }}
{{- else if .Values.nats.external.ca }}{{ .Values.nats.external.secret }}{{ end -}}
{{- end }}

{{- /* What Pod Security "restricted" asks of a pod, and of its containers. */ -}}
{{- define "rollfleet.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "rollfleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Where a pod may and would run. Call with .Values.operator. */ -}}
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
priorityClassName: {{ . }}
{{- end }}
{{- end }}
