"""What `horovod.keras` and `horovod.tensorflow.keras` have in common."""

from ring_keras.horovod import _names
from ring_keras.horovod._gradients import PartialDistributedOptimizer, load_model
from ring_keras.horovod._keras_helpers import allgather, broadcast, reducescatter
from ring_keras.horovod._names import *  # noqa: F403

__all__ = [
    *_names.__all__,
    "PartialDistributedOptimizer",
    "allgather",
    "broadcast",
    "load_model",
    "reducescatter",
]
