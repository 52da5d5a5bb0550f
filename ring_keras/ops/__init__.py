"""Collectives on TensorFlow tensors: one file per collective.

Each works eagerly and inside `tf.function`, and has a gradient.
"""

from ring_keras._requirements import require_tensorflow

require_tensorflow("A collective on tensors (ring_keras.allreduce and the like)")

from ring_keras.ops import gradients as gradients  # Registers them.
