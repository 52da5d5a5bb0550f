"""Collectives on values, as Horovod's Keras modules have them: fewer arguments."""

from typing import Any

import tensorflow as tf

import ring_keras as ring
from ring_keras.ops.reduce_op import Average, ReduceOp

__all__ = ["allgather", "broadcast", "reducescatter"]


def allgather(value: Any, name: str | None = None) -> tf.Tensor:
    """See `ring_keras.allgather`."""
    return ring.allgather(value, name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """See `ring_keras.broadcast`."""
    return ring.broadcast(value, root_rank, name=name)


def reducescatter(
    value: Any, name: str | None = None, op: ReduceOp = Average
) -> tf.Tensor:
    """See `ring_keras.reducescatter`."""
    return ring.reducescatter(value, op, name=name)
