"""Lets every rank train as many steps as the one with the most batches."""

from __future__ import annotations

import weakref
from typing import Any, TypeAlias, TypeVar

import keras

from ring_keras.config import keras_backend
from ring_keras.data.endless import INFINITE, require_all_or_none_infinite
from ring_keras.errors import RankMismatchError
from ring_keras.job.job import PerJob, current_job
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["is_joined", "join"]

_Data = TypeVar("_Data")
_ById: TypeAlias = weakref.WeakValueDictionary[int, Any]

_UNKNOWN = -2  # As in tf.data.

_joined: PerJob[_ById] = PerJob(weakref.WeakValueDictionary)


def join(data: _Data, *, process_set: ProcessSet | None = None) -> _Data:
    """Lets `fit` take as many steps as the longest data of all ranks have batches.

    With Keras's back ends torch and JAX. A rank without data goes on with the others,
    and counts for nothing: the average divides by the others' examples, and neither
    metrics nor moving statistics nor seeds of that rank change. So all ranks take the
    same number of steps, and every example is used.

    Call it last, on every rank of the process set, and pass what it returns to `fit`,
    as `x` or in `validation_data`. It marks these very objects: what is made of them
    later is not joined.

    Args:
        data: This rank's: a `keras.utils.PyDataset`, a `DataLoader`, a
            `tf.data.Dataset`, a generator, or arrays in tuples, lists and dicts. The
            number of batches may differ between ranks; each has one at least.
        process_set: Ranks that train together. Defaults to all.

    Returns:
        The same.

    Raises:
        TypeError: If it is something else.
        RankMismatchError: On every rank, if some have no batch, if the data of some end
            and those of others never do, or if only some raise the `TypeError`.
    """
    process_set = process_set or global_process_set
    leaves, counts = gather_outcomes("data.join", lambda: _looked_at(data), process_set)
    require_all_or_none_infinite(counts, process_set.ranks)
    empty = [r for r, n in zip(process_set.ranks, counts, strict=True) if n == 0]
    if empty:
        raise RankMismatchError(
            f"[RK668] ring_keras.data.join: ranks {empty} have no batch at all. With "
            f"Keras's back end {keras_backend().name} each rank needs one, to go on "
            "with when its data have ended: divide the data otherwise, or train on "
            "fewer ranks."
        )
    if min(counts) != INFINITE:
        joined = _joined.of(current_job())
        joined.update((id(leaf), leaf) for leaf in leaves)
    return data


def is_joined(data: Any) -> bool:
    """Whether `join` was given these, or one of several arrays, in this job."""
    joined = _joined.of(current_job())
    return any(joined.get(id(leaf)) is leaf for leaf in _leaves(data))


def _leaves(data: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(data) if leaf is not None]


def _looked_at(data: Any) -> tuple[list[Any], int]:
    """What is to be marked, and how many batches there are, or rows."""
    leaves = _leaves(data)
    count = _count(leaves)
    try:
        for leaf in leaves:
            weakref.ref(leaf)
    except TypeError:
        count = None
    if count is None:
        raise TypeError(
            "[RK669] ring_keras.data.join takes a keras.utils.PyDataset, a DataLoader, "
            "a tf.data.Dataset, a generator, or arrays in tuples, lists and dicts. "
            f"Received: {type(data).__name__}"
        )
    return leaves, count


def _count(leaves: list[Any]) -> int | None:
    """None of what has no batches."""
    if leaves and all(getattr(leaf, "shape", ()) for leaf in leaves):
        return min(int(leaf.shape[0]) for leaf in leaves)
    if len(leaves) != 1:
        return None
    data = leaves[0]
    if isinstance(data, keras.utils.PyDataset):
        return INFINITE if data.num_batches is None else int(data.num_batches)
    if hasattr(data, "cardinality"):
        return int(data.cardinality())
    # A DataLoader has a length that its dataset may lack.
    if hasattr(getattr(data, "dataset", data), "__len__"):
        return len(data)
    return _UNKNOWN if hasattr(data, "__iter__") else None
