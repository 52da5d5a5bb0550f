"""Allreduces of NumPy arrays that are made again and again."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ring_keras import _native
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.arguments import (
    require_collective_dtype,
    to_communicator,
    to_reduce_op,
)
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["prepare_allreduce", "shared_empty"]


def prepare_allreduce(
    array: NDArray[Any],
    op: ReduceOp | str = ReduceOp.AVERAGE,
    *,
    out: NDArray[Any] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Callable[[], NDArray[Any]]:
    """Binds an allreduce to the array that it reads and the one that it writes.

    Use it in your own loops: each call reduces the current contents of the array, and
    costs less than `allreduce`, which checks its arguments in every call. This function
    does not communicate. Arrays of `shared_empty` are reduced in place.

    Examples:
        >>> values = np.zeros(2, np.float32)
        >>> average = ring.prepare_allreduce(values)
        >>> values[:] = [ring.rank(), 1.0]
        >>> average()
        array([0.5, 1. ], dtype=float32)

    Args:
        array: C-contiguous, of any shape; shape and dtype must agree on every rank.
        op: How to combine values, as in `allreduce`, without `ADASUM`.
        out: The array for the result: a writeable array like `array` that does not
            overlap it, or `array` itself. Defaults to a new one.
        name: Pairs the calls with those of the other ranks, as in `allreduce`. Defaults
            to a name made of op, dtype and shape: functions that agree in these must be
            called in the same order on every rank.
        process_set: Ranks taking part. Defaults to all.

    Returns:
        A function without arguments that takes part in the allreduce and returns
        `out`, bitwise equal on every rank. It raises what `allreduce` does. After
        `shutdown()`, prepare another.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        TypeError: If `array` or `out` is no NumPy array, or collectives do not have its
            dtype.
        ValueError: If `array` is not contiguous, `out` does not fit, or `op` is not
            defined for the dtype.
    """
    for which, given in (("array", array), ("out", array if out is None else out)):
        if not isinstance(given, np.ndarray):
            raise TypeError(
                f"`{which}` of ring_keras.prepare_allreduce must be a NumPy array. "
                f"Received: {type(given).__name__}"
            )
    if out is not None and _overlap(array, out):
        raise ValueError(
            "`out` of ring_keras.prepare_allreduce must be `array` itself or have no "
            "memory in common with it. Received: arrays that overlap"
        )
    dtype = array.dtype.name
    require_collective_dtype(dtype, "prepare_allreduce")
    reduce_op = to_reduce_op(op, dtype, "prepare_allreduce")
    return _native.prepare_allreduce(
        array,
        reduce_op,
        name or f"allreduce/{reduce_op}/{dtype}{list(array.shape)}",
        np.empty_like(array) if out is None else out,
        to_communicator(process_set),
    )


def _overlap(array: NDArray[Any], out: NDArray[Any]) -> bool:
    """Whether the one would be overwritten while it is read, in another place."""
    starts = [one.__array_interface__["data"][0] for one in (array, out)]
    return starts[0] != starts[1] and np.may_share_memory(array, out)


def shared_empty(shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Makes an array in memory that the ranks of this host have mapped.

    It is like `np.empty`. If both the input and `out` of `prepare_allreduce` are such
    arrays, they are reduced without copies. Otherwise it is an ordinary array.

    Examples:
        >>> values = ring.shared_empty(1000, np.float32)
        >>> values[:] = ring.rank()
        >>> total = ring.prepare_allreduce(values, ring.Sum, out=values)
        >>> total()[-1]
        np.float32(1.0)

    Args:
        shape: Of the array.
        dtype: Of its elements.

    Returns:
        The array, with arbitrary values. Its memory is freed when nothing refers to it.
        A rank has 16 GiB of such memory.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        TypeError: If collectives do not have the dtype.
        RingKerasError: If there is no room.
    """
    require_collective_dtype(np.dtype(dtype).name, "shared_empty")
    sizes = shape if isinstance(shape, Sequence) else [shape]
    return _native.shared_empty([operator.index(size) for size in sizes], dtype)
