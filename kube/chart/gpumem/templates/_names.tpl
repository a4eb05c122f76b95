{{- define "gpumem.labels" -}}
app.kubernetes.io/name: gpumem
app.kubernetes.io/component: agent
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}
