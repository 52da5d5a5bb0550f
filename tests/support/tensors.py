"""Tensors whose values every rank can work out for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

INTEGERS = ["uint8", "int8", "uint16", "int16", "int32", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
DTYPES = [*INTEGERS, *FLOATS, "bool"]

# Scalar, empty, one, fewer than ranks, uneven, several dimensions, more than a
# segment.
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3,), (7,), (2, 3, 5), (0, 4), (5003,)]


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def small_values(rank: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Values from 1 to 3: sums and products of a few are exact in any dtype."""
    count = int(np.prod(shape, dtype=int))
    values = (np.arange(count) * 7 + rank * 5) % 3 + 1
    if dtype == "bool":
        values = values % 2
    return values.reshape(shape).astype(numpy_dtype(dtype))


def random_values(rank: int, count: int, dtype: str) -> Array:
    generator = np.random.default_rng([rank, count])
    return generator.standard_normal(count).astype(numpy_dtype(dtype))


def reduced(inputs: list[Array], op: str) -> Array:
    """What numpy makes of exact inputs."""
    dtype = inputs[0].dtype
    stacked = np.stack(inputs)
    if dtype == np.dtype(ml_dtypes.bfloat16):
        stacked = stacked.astype(np.float32)
    functions: dict[str, Callable[..., Any]] = {
        "sum": np.sum,
        "average": np.mean,
        "min": np.min,
        "max": np.max,
        "product": np.prod,
    }
    return np.asarray(functions[op](stacked, axis=0)).astype(dtype)


def ops_of(dtype: str) -> list[str]:
    """The reduce ops that mean something for the dtype."""
    if dtype == "bool":
        return ["min", "max"]
    if dtype in INTEGERS:
        return ["sum", "min", "max", "product"]
    return ["sum", "average", "min", "max", "product"]
