{{/*
A pod template. Takes `root`, the `component` that it is, the `command` and `args` of
its container, its `restartPolicy`, and, if it has one, a `role`:
  worker    an agent that waits, and is ready when it does
  launcher  starts ranks elsewhere, and has the script that finds the workers
*/}}
{{- define "ring-keras.pod" -}}
{{- $root := .root }}
{{- $role := .role | default "" }}
{{- $isLauncher := eq $role "launcher" }}
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
  {{- include "ring-keras.podSpec" $root | nindent 2 }}
  initContainers:
  # A Secret's file belongs to root, and the pod's group may read it. ringrun takes
  # none that anybody but its user can read.
  - name: secret
    {{- include "ring-keras.container" $root | nindent 4 }}
    command: [install, -m, "0400", /run/secrets/ring-keras/token, /run/ring-keras/token]
    resources:
      limits: {memory: 32Mi}
      requests: {cpu: 10m, memory: 32Mi}
    volumeMounts:
    - {name: secret, mountPath: /run/secrets/ring-keras, readOnly: true}
    - {name: private, mountPath: /run/ring-keras}
  {{- if and $isLauncher (not .elastic.enabled) }}
  - name: workers
    {{- include "ring-keras.container" $root | nindent 4 }}
    command: [/scripts/await.sh]
    resources:
      limits: {memory: 32Mi}
      requests: {cpu: 10m, memory: 32Mi}
    volumeMounts:
    - {name: scripts, mountPath: /scripts, readOnly: true}
  {{- end }}
  containers:
  - name: ranks
    {{- include "ring-keras.container" $root | nindent 4 }}
    {{- with .workingDir }}
    workingDir: {{ . }}
    {{- end }}
    command: {{ toYaml $.command | nindent 4 }}
    args: {{ toYaml $.args | nindent 4 }}
    env:
    # The image may not know the user, and cannot be written to.
    - {name: HOME, value: /tmp}
    - {name: PYTHONDONTWRITEBYTECODE, value: "1"}
    {{- if eq $role "worker" }}
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    {{- end }}
    {{- if not $isLauncher }}
    {{- with .env }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with .envFrom }}
    envFrom: {{ toYaml . | nindent 4 }}
    {{- end }}
    ports:
    - {name: rendezvous, containerPort: {{ .port }}}
    resources: {{ include "ring-keras.resources" $root | nindent 6 }}
    {{- else }}
    resources: {{ toYaml .launcher.resources | nindent 6 }}
    {{- end }}
    {{- if eq $role "worker" }}
    readinessProbe:
      tcpSocket: {port: rendezvous}
      periodSeconds: 5
    {{- end }}
    volumeMounts:
    - {name: private, mountPath: /run/ring-keras, readOnly: true}
    - {name: shm, mountPath: /dev/shm}
    - {name: tmp, mountPath: /tmp}
    {{- if $isLauncher }}
    - {name: scripts, mountPath: /scripts, readOnly: true}
    {{- end }}
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
  {{- if $isLauncher }}
  - name: scripts
    configMap:
      name: {{ include "ring-keras.fullname" $root }}
      defaultMode: 0555
  {{- end }}
  {{- with .volumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}
