"""Splits data among the ranks: every item on exactly one of them."""

from typing import Any, Literal, TypeVar, get_args

import tensorflow as tf

from ring_keras.communicator import ProcessSet, global_process_set
from ring_keras.data.shard_arrays import shard_arrays
from ring_keras.data.shard_dataset import shard_dataset, shuffle_seeds
from ring_keras.errors import RankMismatchError
from ring_keras.objects import allgather_object

__all__ = ["Remainder", "shard"]

Remainder = Literal["drop", "keep"]
_Data = TypeVar("_Data")


def shard(
    data: _Data,
    *,
    seed: int | None = None,
    remainder: Remainder = "drop",
    process_set: ProcessSet | None = None,
) -> _Data:
    """Returns this rank's part of the data.

    Rank r of n gets items r, r + n, r + 2n and so on, so that batch k of all
    ranks together holds the items that batch k of one process, n times as
    large, would hold. Shard before batching. Every rank of the process set
    must call it: they make sure that they split the same number of items in
    the same order.

    Args:
        data: A `tf.data.Dataset` of single items, or arrays, or tuples, lists
            and dicts of arrays with equal first dimensions. The same on every
            rank.
        seed: Shuffles all items before they are split, on every rank alike;
            the same number on every rank. A dataset is shuffled anew each time
            it is iterated, so every rank must iterate it as often; arrays are
            shuffled once. A dataset that was shuffled before needs no seed
            here, but must have had one there.
        remainder: What to do if the number of items is no multiple of the
            number of ranks. "drop" leaves out the last few, fewer than the
            number of ranks, so that all ranks have as many: needed for
            training. "keep" leaves out none: for evaluation.
        process_set: Ranks to split among. Defaults to all.

    Returns:
        Data of the same kind.

    Raises:
        ValueError: If the data cannot be split so that every item is on one
            rank, for instance because it was shuffled without a seed.
        TypeError: If `data` is of another kind.
        RankMismatchError: If the ranks have different numbers of items, or
            different seeds. `tf.random.set_seed` and
            `keras.utils.set_random_seed` count among these.
    """
    if remainder not in get_args(Remainder):
        raise ValueError(
            f"`remainder` must be 'drop' or 'keep'. Received: remainder={remainder!r}"
        )
    process_set = process_set or global_process_set
    split: Any = shard_dataset if isinstance(data, tf.data.Dataset) else shard_arrays
    part: _Data = split(
        data, seed, remainder == "drop", process_set.rank(), process_set.size()
    )
    _agree(data, part, seed, process_set)
    return part


def _agree(data: Any, part: Any, seed: int | None, process_set: ProcessSet) -> None:
    """Raises the same error on every rank if they split different data."""
    seeds: Any
    if isinstance(data, tf.data.Dataset):
        count, seeds = int(data.cardinality()), shuffle_seeds(part)
    else:
        count, seeds = len(tf.nest.flatten(data)[0]), seed
    ours = [f"{count} items" if count >= 0 else "items", f"seeds {seeds}"]
    all_of_them = allgather_object(ours, name="data.shard", process_set=process_set)
    for rank, theirs in zip(process_set.ranks, all_of_them, strict=True):
        if theirs != all_of_them[0]:
            raise RankMismatchError(
                "ring_keras.data.shard: the data differ across ranks: rank "
                f"{process_set.ranks[0]} has {' and '.join(all_of_them[0])}, rank "
                f"{rank} has {' and '.join(theirs)}. Give every rank the same data "
                "and seeds; call keras.utils.set_random_seed() with a number of each "
                "rank's own only after this."
            )
