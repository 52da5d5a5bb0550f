"""Collectives on TensorFlow tensors: one file per collective.

Each works eagerly and inside `tf.function`, and has a gradient.
"""

from ring_keras.ops import gradients as gradients  # Registers them.
