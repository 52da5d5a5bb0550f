"""Horovod's names for what ring_keras does.

A script that imports `horovod.tensorflow`, `horovod.tensorflow.keras` or
`horovod.keras` imports `ring_keras.horovod.tensorflow` and so on instead. The
modules here turn Horovod's arguments into those of ring_keras, and do nothing
else. docs/horovod.md says what differs.

What other packages see of Horovod beyond TensorFlow and Keras is not here, and
neither is `horovod.run`: start scripts with `ringrun`.
"""
