"""Collectives on values, as Horovod's Keras modules have them: fewer arguments."""

from typing import Any

import tensorflow as tf

from ring_keras.horovod import _collectives as collectives
from ring_keras.values.reduce_op import Average, ReduceOp

__all__ = ["allgather", "broadcast", "reducescatter"]


def allgather(value: Any, name: str | None = None) -> tf.Tensor:
    """See `ring_keras.allgather`."""
    return collectives.allgather(value, name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """See `ring_keras.broadcast`."""
    return collectives.broadcast(value, root_rank, name=name)


def reducescatter(
    value: Any, name: str | None = None, op: ReduceOp = Average
) -> tf.Tensor:
    """See `ring_keras.reducescatter`."""
    return collectives.reducescatter(value, op=op, name=name)
