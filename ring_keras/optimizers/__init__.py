"""Averaging gradients over the ranks, behind Keras's own optimizers and tapes."""

from ring_keras._requirements import require_tensorflow

require_tensorflow("ring_keras.DistributedGradientTape")
