"""ring_keras on numpy arrays in place, without TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.ranks.agent import Operation, Request, answer
from benchmarks.ranks.arrays import Array, array_operations
from ring_keras import _native
from ring_keras._version import __version__
from ring_keras.config import Config

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    _native.init(**Config.from_environment().init_options())
    private = array_operations(rank, size, _prepare)
    shared = array_operations(rank, size, _prepare, _allocate_shared)

    def either(name: str) -> Operation:
        def measure(request: Request) -> list[float]:
            where = shared if request.text("memory") == "shared" else private
            return where[name](request)

        return measure

    answer(socket_path, rank, __version__, {name: either(name) for name in private})
    _native.shutdown("the benchmark ended")


def _allocate_shared(count: int, dtype: np.dtype[Any]) -> Array:
    return _native.shared_empty([count], dtype)


def _prepare(array: Array) -> Callable[[], object]:
    return functools.partial(_native.allreduce, array, "sum", "benchmark", array)
