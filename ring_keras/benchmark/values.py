"""Inputs whose reduction every rank knows, however large they are.

Values repeat with a short period, so that what must come out is worked out for
one period and then repeated. All are 1 or 2: sums and products of many ranks'
are exact in every dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPES", "Array", "filled", "reduced", "tolerance"]

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        *("float32", "float64", "float16", "bfloat16"),
        *("int8", "uint8", "int32", "int64"),
    )
}

# Prime: no cut of a buffer into equal parts repeats along with it.
_PERIOD = 7


def filled(rank: int, count: int, dtype: str) -> Array:
    """The input of `count` elements of a rank."""
    return np.resize(_period(rank, dtype), count)


def reduced(size: int, count: int, dtype: str, op: str) -> Array:
    """The reduction of the inputs of all `size` ranks."""
    values = np.stack([_period(rank, dtype) for rank in range(size)])
    if "int" not in dtype:
        values = values.astype(np.float64)
    combine: dict[str, Any] = {
        # Integers wrap around, as they do in the engine.
        "sum": functools.partial(np.sum, dtype=values.dtype),
        "product": functools.partial(np.prod, dtype=values.dtype),
        "average": np.mean,
        "min": np.min,
        "max": np.max,
    }
    return np.resize(combine[op](values, axis=0).astype(DTYPES[dtype]), count)


def tolerance(size: int, dtype: str, op: str) -> float:
    """How far a right result may be from the exact one, relative to it."""
    if "int" in dtype or op in ("min", "max", "product"):
        return 0.0
    finfo: Callable[[Any], Any] = ml_dtypes.finfo
    epsilon = float(finfo(DTYPES[dtype]).eps)
    if op == "sum" and size * epsilon <= 1:  # Every partial sum is exact.
        return 0.0
    return size * epsilon


def _period(rank: int, dtype: str) -> Array:
    place = (np.arange(_PERIOD) + rank) % _PERIOD
    return np.where(place == 0, 2, 1).astype(DTYPES[dtype])
