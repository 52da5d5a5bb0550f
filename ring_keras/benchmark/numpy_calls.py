"""Calls of the engine on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable

from ring_keras import _native
from ring_keras.benchmark.values import Array

__all__ = ["numpy_call"]

_ROOT = 0


def numpy_call(collective: str, array: Array, op: str) -> Callable[[], object]:
    """A function that takes part in the collective and returns its output, an array."""
    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: _native.allreduce(array, op),
        "allgather": lambda: _native.allgather(array),
        "broadcast": lambda: _native.broadcast(array, _ROOT),
        "reduce_scatter": lambda: _native.reduce_scatter(array, op),
        "alltoall": lambda: _native.alltoall(array)[0],
    }
    return calls[collective]
