"""Optimizers whose state can be divided."""

from typing import Final

import keras

__all__ = ["SHARDABLE", "can_cut", "can_shard", "can_shard_inside"]

SHARDABLE: Final = (
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "Muon",
    "Nadam",
    "RMSprop",
    "SGD",
)
"""Optimizers of Keras whose state of a variable is made from that variable, and used in
its update alone. Of a subclass there is no telling."""

# These update an element by means or products over the variable.
_WHOLE: Final = ("Adafactor", "Lamb", "Muon")


def can_cut(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether ranks can have pieces of a variable's state, with the same bits."""
    if isinstance(optimizer, keras.optimizers.SGD) and not optimizer.momentum:
        return False  # Nothing is kept that could be divided.
    return not any(
        type(optimizer) is getattr(keras.optimizers, name, None) for name in _WHOLE
    )


def can_shard(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether its state can be divided."""
    return any(
        type(optimizer) is getattr(keras.optimizers, name, None) for name in SHARDABLE
    )


def can_shard_inside(wrapper: keras.optimizers.Optimizer) -> bool:
    """Whether the states of those can be divided to which it hands its gradients."""
    if isinstance(wrapper, keras.optimizers.LossScaleOptimizer):
        return True
    # Older Keras has no such class.
    return type(wrapper) is getattr(keras.optimizers, "MultiOptimizer", None)
