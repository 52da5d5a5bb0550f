"""Calls of the engine on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ring_keras import _native
from ring_keras.benchmark.values import Array

__all__ = ["BUFFERS", "numpy_call"]

_ROOT = 0

# Where an allreduce reads and writes.
BUFFERS = {
    "separate": "an output that is used again and again",
    "new": "a new output each time",
    "in-place": "the output is the input",
    "shared": "input and output in memory that the ranks of a host share",
    "shared-in-place": "the same, and the output is the input",
}


def numpy_call(
    collective: str, values: Array, op: str, buffers: str
) -> Callable[[], object]:
    """A function that takes part in the collective and returns its output, an array.

    Where it works in place, its input is `values` the first time only.
    """
    if collective == "allreduce":
        return _allreduce_call(values, op, buffers)
    calls: dict[str, Callable[[], object]] = {
        "allgather": lambda: _native.allgather(values),
        "broadcast": lambda: _native.broadcast(values, _ROOT),
        "reduce_scatter": lambda: _native.reduce_scatter(values, op),
        "alltoall": lambda: _native.alltoall(values)[0],
    }
    return calls[collective]


def _allreduce_call(values: Array, op: str, buffers: str) -> Callable[[], object]:
    if buffers == "new":
        return lambda: _native.allreduce(values, op)
    empty = _native.shared_empty if buffers.startswith("shared") else np.empty
    array = empty(values.shape, values.dtype)
    array[...] = values
    out = array if buffers.endswith("in-place") else empty(values.shape, values.dtype)
    return lambda: _native.allreduce(array, op, "allreduce", out)
