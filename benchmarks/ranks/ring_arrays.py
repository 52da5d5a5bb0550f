"""ring_keras on numpy arrays in place, without TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.ranks.agent import Operation, Request, UnsupportedError, answer
from benchmarks.ranks.arrays import Array, array_operations
from ring_keras import _native
from ring_keras._version import __version__
from ring_keras.config import Config

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    _native.init(**Config.from_environment().init_options())
    operations = {
        (how, where): array_operations(rank, size, prepare, *allocate)
        for how, prepare in {"": _each_time, "prepared": _prepared}.items()
        for where, allocate in {"": (), "shared": (_allocate_shared,)}.items()
    }

    def any_of(name: str) -> Operation:
        def measure(request: Request) -> list[float]:
            chosen = operations[request.text("call"), request.text("memory")]
            return chosen[name](request)

        return measure

    names = operations["", ""]
    answer(socket_path, rank, __version__, {name: any_of(name) for name in names})
    _native.shutdown("the benchmark ended")


def _allocate_shared(count: int, dtype: np.dtype[Any]) -> Array:
    return _native.shared_empty([count], dtype)


def _prepared(array: Array) -> Callable[[], object]:
    if not hasattr(_native, "prepare_allreduce"):  # Of an earlier checkout.
        raise UnsupportedError
    return _native.prepare_allreduce(array, "sum", "prepared", array)


def _each_time(array: Array) -> Callable[[], object]:
    return functools.partial(_native.allreduce, array, "sum", "benchmark", array)
