"""Calls of the TensorFlow ops, each in a `tf.function`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import ring_keras as ring
from ring_keras.benchmark.values import Array

__all__ = ["tensorflow_call"]

_ROOT = 0


def tensorflow_call(collective: str, array: Array, op: str) -> Callable[[], object]:
    """A function that takes part in the collective and returns its output, a tensor.

    Its time includes the call of the `tf.function`.
    """
    ops: dict[str, Callable[[Any], Any]] = {
        "allreduce": lambda tensor: ring.allreduce(tensor, op),
        "allgather": ring.allgather,
        "broadcast": lambda tensor: ring.broadcast(tensor, _ROOT),
        "reduce_scatter": lambda tensor: ring.reducescatter(tensor, op),
        "alltoall": ring.alltoall,
    }
    with tf.device("cpu"):
        tensor = tf.constant(array)
        function = tf.function(ops[collective]).get_concrete_function(tensor)
    return functools.partial(function, tensor)
