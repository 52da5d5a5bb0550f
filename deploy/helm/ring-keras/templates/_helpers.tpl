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
{{- /* --set image.tag=1 is a number to Helm, and a large one has an exponent. */}}
{{- $tag := .Values.image.tag | toString }}
{{- if kindIs "float64" .Values.image.tag }}{{ $tag = printf "%.0f" .Values.image.tag }}{{ end }}
{{- if $tag }}{{ $image = printf "%s:%s" $image $tag }}{{ end }}
{{- with .Values.image.digest }}{{ $image = printf "%s@%s" $image . }}{{ end }}
{{- $image }}
{{- end }}

{{/* The name of a pod of the headless Service, as every other pod finds it. */}}
{{- define "ring-keras.podAddress" -}}
{{- $name := include "ring-keras.fullname" .root -}}
{{ .pod }}.{{ $name }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{/* What all containers have. */}}
{{- define "ring-keras.container" -}}
image: {{ include "ring-keras.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* What all pods have, but for their containers. */}}
{{- define "ring-keras.podSpec" -}}
subdomain: {{ include "ring-keras.fullname" . }}
automountServiceAccountToken: false
enableServiceLinks: false
# ringrun's own grace period ends first, and it says what it has done.
terminationGracePeriodSeconds: {{ add .Values.ringrun.gracePeriodSeconds 10 }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.user }}
  runAsGroup: {{ .Values.user }}
  fsGroup: {{ .Values.user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- range $name := list "schedulerName" "priorityClassName" "runtimeClassName" }}
{{- with index $.Values $name }}
{{ $name }}: {{ . }}
{{- end }}
{{- end }}
{{- range $name := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with index $.Values $name }}
{{ $name }}: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
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

{{/* A pod that the cluster wanted to end, and one that ends as it was asked to
(128 + SIGTERM), count nothing; wrong options and commands would fail again. */}}
{{- define "ring-keras.podFailurePolicy" -}}
rules:
- action: Ignore
  onPodConditions:
  - {type: DisruptionTarget, status: "True"}
- action: Ignore
  onExitCodes: {containerName: ranks, operator: In, values: [143]}
- action: FailJob
  onExitCodes: {containerName: ranks, operator: In, values: [2, 126, 127]}
{{- end }}

{{/* The rest of an object's metadata that is the user's. */}}
{{- define "ring-keras.metadata" -}}
labels:
  {{- include "ring-keras.labels" . | nindent 2 }}
  {{- with .Values.labels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with .Values.annotations }}
annotations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* How long Jobs may take, and are kept. */}}
{{- define "ring-keras.jobTimes" -}}
suspend: {{ .Values.suspend }}
{{- range $key := list "activeDeadlineSeconds" "ttlSecondsAfterFinished" }}
{{- with index $.Values $key }}
{{ $key }}: {{ . | int64 }}
{{- end }}
{{- end }}
{{- end }}

{{/* How many workers there may be. */}}
{{- define "ring-keras.mostNodes" -}}
{{- if .Values.elastic.enabled }}{{ max .Values.nodes (.Values.elastic.maxNodes | default 0) }}
{{- else }}{{ .Values.nodes }}
{{- end }}
{{- end }}
