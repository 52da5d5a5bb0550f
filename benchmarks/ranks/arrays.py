"""Allreduce of numpy arrays, whatever library does it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.ranks.agent import Operation, Request, UnsupportedError, read_shapes

__all__ = ["Array", "array_operations", "check_sum", "numpy_dtype"]

Array = NDArray[Any]
# Takes an array and returns what reduces it in place, over and over.
Prepare = Callable[[Array], Callable[[], object]]
Allocate = Callable[[int, "np.dtype[Any]"], Array]


def array_operations(
    rank: int, size: int, prepare: Prepare, allocate: Allocate = np.empty
) -> dict[str, Operation]:
    """The operations on arrays, for a library that reduces one in place."""

    def allreduce(request: Request) -> list[float]:
        dtype = numpy_dtype(request)
        count = request.number("nbytes") // dtype.itemsize
        array = allocate(count, dtype)
        chunk = request.number("chunk_nbytes") // dtype.itemsize or max(count, 1)
        return measure(request, [array[i : i + chunk] for i in range(0, count, chunk)])

    def gradients(request: Request) -> list[float]:
        dtype = numpy_dtype(request)
        counts = [math.prod(shape) for shape in read_shapes(request.text("shapes"))]
        if request.text("layout") == "flat":
            counts = [sum(counts)]
        return measure(request, [allocate(count, dtype) for count in counts])

    def measure(request: Request, arrays: list[Array]) -> list[float]:
        calls = [prepare(array) for array in arrays]
        for array in arrays:
            array.fill(rank + 1)
        call = calls[0] if len(calls) == 1 else lambda: [call() for call in calls]
        call()
        for array in arrays:
            check_sum(array, size)
            # Sums that grow from call to call would overflow.
            array.fill(0)
        return request.time(call)

    return {"allreduce": allreduce, "gradients": gradients}


def numpy_dtype(request: Request) -> np.dtype[Any]:
    name = request.text("dtype", "float32")
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def check_sum(array: Array, size: int) -> None:
    """Raises unless `array` is the sum over ranks of arrays full of rank + 1."""
    expected = size * (size + 1) // 2
    if not (array == expected).all():
        raise ValueError(
            f"The sum over {size} ranks must be {expected} everywhere. Received: "
            f"{array[array != expected][0]} at {np.argmax(array != expected)}"
        )
