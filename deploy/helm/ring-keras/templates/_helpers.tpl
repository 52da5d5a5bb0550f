{{- define "ring-keras.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "ring-keras.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ring-keras.labels" -}}
{{ include "ring-keras.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "ring-keras.secretName" -}}
{{ .Values.existingSecret | default (include "ring-keras.fullname" .) }}
{{- end }}

{{- define "ring-keras.image" -}}
{{- $image := required "image.repository: an image with Python, TensorFlow, ring_keras and your script" .Values.image.repository }}
{{- with .Values.image.tag }}{{ $image = printf "%s:%s" $image . }}{{ end }}
{{- with .Values.image.digest }}{{ $image = printf "%s@%s" $image . }}{{ end }}
{{- $image }}
{{- end }}

{{/* The name of a pod of the headless Service, as every other pod finds it. */}}
{{- define "ring-keras.podAddress" -}}
{{- $name := include "ring-keras.fullname" .root -}}
{{ .pod }}.{{ $name }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{- define "ring-keras.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "ring-keras.resources" -}}
{{- $resources := deepCopy .Values.resources }}
{{- if .Values.gpu.perPod }}
{{- $gpus := dict "limits" (dict .Values.gpu.resource .Values.gpu.perPod) }}
{{- $resources = mergeOverwrite $resources $gpus }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* What ringrun gets in any mode: options, then the command of each rank. */}}
{{- define "ring-keras.commonArgs" -}}
{{- $ringrun := .Values.ringrun }}
{{- $args := list "--secret-file" "/run/ring-keras/token" }}
{{- $args = concat $args (list "--start-timeout" (toString $ringrun.startTimeoutSeconds)) }}
{{- $args = concat $args (list "--grace-period" (toString $ringrun.gracePeriodSeconds)) }}
{{- if .Values.encrypt }}{{ $args = append $args "--encrypt" }}{{ end }}
{{- concat $args $ringrun.options .Values.command | toJson }}
{{- end }}
