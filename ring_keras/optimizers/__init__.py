"""Averaging gradients over the ranks, behind Keras's own optimizers."""

from ring_keras.optimizers.distributed_optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
