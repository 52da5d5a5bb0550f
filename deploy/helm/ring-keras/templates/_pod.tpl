{{/*
A pod template. Takes `root`, the `component` that it is, the `args` of ringrun, and
the `restartPolicy`.
*/}}
{{- define "ring-keras.pod" -}}
{{- $root := .root }}
{{- with $root.Values -}}
metadata:
  labels:
    {{- include "ring-keras.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $.component }}
    {{- with .podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .podAnnotations }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}
spec:
  restartPolicy: {{ $.restartPolicy }}
  subdomain: {{ include "ring-keras.fullname" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # ringrun's own grace period ends first, and it says what it has done.
  terminationGracePeriodSeconds: {{ add .ringrun.gracePeriodSeconds 10 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ .user }}
    runAsGroup: {{ .user }}
    fsGroup: {{ .user }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with .imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- range $name := list "schedulerName" "priorityClassName" "runtimeClassName" }}
  {{- with index $root.Values $name }}
  {{ $name }}: {{ . }}
  {{- end }}
  {{- end }}
  {{- range $name := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
  {{- with index $root.Values $name }}
  {{ $name }}: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  initContainers:
  # A Secret's file belongs to root, and the pod's group may read it. ringrun takes
  # none that anybody but its user can read.
  - name: secret
    image: {{ include "ring-keras.image" $root }}
    imagePullPolicy: {{ .image.pullPolicy }}
    command: [install, -m, "0400", /run/secrets/ring-keras/token, /run/ring-keras/token]
    resources:
      limits: {memory: 32Mi}
      requests: {cpu: 10m, memory: 32Mi}
    securityContext: {{ include "ring-keras.securityContext" $root | nindent 6 }}
    volumeMounts:
    - {name: secret, mountPath: /run/secrets/ring-keras, readOnly: true}
    - {name: private, mountPath: /run/ring-keras}
  containers:
  - name: ranks
    image: {{ include "ring-keras.image" $root }}
    imagePullPolicy: {{ .image.pullPolicy }}
    {{- with .workingDir }}
    workingDir: {{ . }}
    {{- end }}
    command: {{ toYaml .ringrun.command | nindent 4 }}
    args: {{ toYaml $.args | nindent 4 }}
    env:
    # The image may not know the user, and cannot be written to.
    - {name: HOME, value: /tmp}
    - {name: PYTHONDONTWRITEBYTECODE, value: "1"}
    {{- with .env }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with .envFrom }}
    envFrom: {{ toYaml . | nindent 4 }}
    {{- end }}
    ports:
    - {name: rendezvous, containerPort: {{ .port }}}
    resources: {{ include "ring-keras.resources" $root | nindent 6 }}
    securityContext: {{ include "ring-keras.securityContext" $root | nindent 6 }}
    volumeMounts:
    - {name: private, mountPath: /run/ring-keras, readOnly: true}
    - {name: shm, mountPath: /dev/shm}
    - {name: tmp, mountPath: /tmp}
    {{- with .volumeMounts }}{{ toYaml . | nindent 4 }}{{ end }}
  volumes:
  - name: secret
    secret:
      secretName: {{ include "ring-keras.secretName" $root }}
      defaultMode: 0400
      items: [{key: token, path: token}]
  - name: private
    emptyDir: {medium: Memory, sizeLimit: 64Ki}
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ .shm.sizeLimit }}}
  - name: tmp
    emptyDir: {sizeLimit: {{ .tmp.sizeLimit }}}
  {{- with .volumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}
