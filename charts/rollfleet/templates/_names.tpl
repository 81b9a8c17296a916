{{- /* The names of Services begin with a letter. */ -}}
{{- define "rollfleet.name" -}}
{{- $name := .Release.Name }}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "rollfleet-%s" $name }}
{{- else if not (contains "rollfleet" $name) }}{{ $name = printf "%s-rollfleet" $name }}{{ end }}
{{- $name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* For objects without a namespace: releases in two namespaces must not share them. */ -}}
{{- define "rollfleet.clusterName" -}}{{ include "rollfleet.name" . }}-{{ .Release.Namespace }}{{- end }}

{{- define "rollfleet.key" -}}{{ include "rollfleet.name" . }}-key{{- end }}
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

{{- /* The rules that let a pod ask name servers. A policy sees the port of their pods: OpenShift's have 5353. */ -}}
{{- define "rollfleet.dns" -}}
{{- with .Values.networkPolicy.dnsTo }}
- to: {{- toYaml . | nindent 4 }}
{{- else }}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
      podSelector: {matchLabels: {k8s-app: kube-dns}}
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: openshift-dns}}
{{- end }}
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
