"""Splits arrays among the ranks: every row on exactly one of them."""

from __future__ import annotations

from typing import Any, TypeVar

import keras

from ring_keras.backends.common.fit import note_divided
from ring_keras.config import keras_backend
from ring_keras.data.agreement import seen_alike
from ring_keras.data.shard_arrays import as_arrays, sample_of, shard_arrays
from ring_keras.job.process_set import ProcessSet, global_process_set

__all__ = ["shard"]

_Data = TypeVar("_Data")


def shard(
    data: _Data,
    *,
    seed: int | None = None,
    remainder: str = "drop",
    process_set: ProcessSet | None = None,
) -> _Data:
    """Returns this rank's rows, with Keras's back ends torch and JAX.

    Rank r of n gets rows r, r + n, r + 2n and so on. Every rank of the process set must
    call it: the ranks check that they split the same rows in the same order.

    Args:
        data: The same on every rank: arrays, or tuples, lists and dicts of arrays with
            equal first dimensions; of NumPy, or tensors in host memory.
        seed: Shuffles all rows before they are split, in the same way on every rank.
        remainder: "drop" leaves out the last few rows, fewer than there are ranks, so
            that all have the same number. "keep" leaves out none.
        process_set: Ranks to split among. Defaults to all.

    Returns:
        Data of the same structure, of arrays of NumPy.

    Raises:
        ValueError: If `remainder` is something else, or rows are fewer than ranks.
        TypeError: If `data` is of another kind.
        RankMismatchError: If the ranks have other numbers of rows, seeds or rows.
    """
    process_set = process_set or global_process_set
    if remainder not in ("drop", "keep"):
        raise ValueError(
            "[RK660] ring_keras.data.shard takes remainder='drop' or 'keep' with "
            f"Keras's back end {keras_backend().name}. "
            f"Received: remainder={remainder!r}"
        )
    rows: list[Any] = []

    def split() -> tuple[Any, str, None]:
        arrays = as_arrays(data)
        rows.append(arrays)
        part = shard_arrays(
            arrays, seed, remainder, process_set.rank(), process_set.size()
        )
        count = len(keras.tree.flatten(arrays)[0])
        if count < process_set.size():
            raise ValueError(
                f"ring_keras.data.shard: {count} rows are too few for "
                f"{process_set.size()} ranks."
            )
        return part, f"{count} rows, seed {seed}, remainder '{remainder}'", None

    part: _Data = seen_alike(
        "data.shard",
        split,
        process_set,
        problem="the data differ across ranks",
        remedy="Give every rank the same data and seeds.",
        sample=lambda: sample_of(rows),
    )
    note_divided()
    return part
