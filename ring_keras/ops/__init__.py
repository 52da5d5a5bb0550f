"""Collectives on TensorFlow tensors: one file per collective.

Each works eagerly and inside `tf.function`, and has a gradient.
"""

from ring_keras._requirements import require_tensorflow

require_tensorflow("This collective (ring_keras.allreduce, barrier, join and others)")

from ring_keras.ops import gradients as gradients  # Registers them.
