"""Dask's collections as shares of the ranks, without a way through the client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import distributed
import numpy as np

__all__ = ["CallWithShards", "Shards", "divide", "shard", "take_shards"]


@dataclass(frozen=True)
class Shards:
    """Stands for each rank's own part of a collection, among arguments of `run`.

    Attributes:
        collection: The whole.
    """

    collection: Any


def shard(collection: Any) -> Shards:
    """Divides a collection among the ranks.

    As an argument of `run` it becomes, on each rank, a list of the partitions that are
    the rank's: data frames, or arrays, the blocks along the first axis, or lists, of a
    bag. They go from worker to worker, and not at all where a rank's own worker holds
    them. The numbers of partitions differ by one at most; how many rows these have is
    the collection's own matter.

    Args:
        collection: A Dask data frame, series, array or bag.

    Raises:
        TypeError: If it is none.
    """
    if not hasattr(collection, "to_delayed"):
        raise TypeError(
            "shard() takes a Dask data frame, series, array or bag. Received: "
            f"{type(collection).__name__}."
        )
    return Shards(collection)


@dataclass(frozen=True)
class _Slot:
    """Where the shards of that number go."""

    number: int


@dataclass(frozen=True)
class CallWithShards:
    """A call that waits for what its rank gets of each collection."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def __call__(self, *shards: list[Any]) -> Any:
        """What the function returns, given what its rank gets of each."""

        def filled(value: Any) -> Any:
            return shards[value.number] if isinstance(value, _Slot) else value

        kwargs = {name: filled(value) for name, value in self.kwargs.items()}
        return self.function(*map(filled, self.args), **kwargs)


def take_shards(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[CallWithShards, list[Any]]:
    """The call without the collections among its arguments, and these."""
    collections: list[Any] = []

    def slot_of(value: Any) -> Any:
        if not isinstance(value, Shards):
            return value
        collections.append(value.collection)
        return _Slot(len(collections) - 1)

    own_args = [slot_of(value) for value in args]
    own_kwargs = {name: slot_of(value) for name, value in kwargs.items()}
    return CallWithShards(function, own_args, own_kwargs), collections


def divide(
    client: distributed.Client, collection: Any, workers: Sequence[str]
) -> list[list[distributed.Future]]:
    """Computes a collection on the cluster, and gives each rank its partitions.

    Args:
        client: Of the cluster.
        collection: What to divide.
        workers: The address of each rank's worker.

    Raises:
        ValueError: If there are fewer partitions than ranks.
    """
    if getattr(collection, "ndim", 1) > 1 and hasattr(collection, "rechunk"):
        # Whole rows.
        collection = collection.rechunk(dict.fromkeys(range(1, collection.ndim), -1))
    parts = np.ravel(np.asarray(collection.to_delayed(), dtype=object)).tolist()
    if len(parts) < len(workers):
        raise ValueError(
            f"shard(): {len(workers)} ranks need a partition each, and the collection "
            f"has {len(parts)}. Divide it anew: repartition(npartitions=...) or "
            "rechunk(...)."
        )
    futures = client.compute(parts)
    distributed.wait(futures)
    holders = client.who_has(futures)
    return _share_out(futures, [set(holders[f.key]) for f in futures], workers)


def _share_out(
    futures: Sequence[distributed.Future],
    holders: Sequence[set[str]],
    workers: Sequence[str],
) -> list[list[distributed.Future]]:
    """Equally, and as far as that goes to those that have them."""
    count, more = divmod(len(futures), len(workers))
    room = [count + (rank < more) for rank in range(len(workers))]
    rank_of: dict[int, int] = {}
    for wants_own in (True, False):
        for part, own in enumerate(holders):
            ranks = [r for r, worker in enumerate(workers) if room[r] > 0]
            if wants_own:
                ranks = [rank for rank in ranks if workers[rank] in own]
            if part in rank_of or not ranks:
                continue
            rank = max(ranks, key=lambda rank: room[rank])
            rank_of[part] = rank
            room[rank] -= 1
    shares: list[list[distributed.Future]] = [[] for _ in workers]
    for part in range(len(futures)):  # In the collection's order.
        shares[rank_of[part]].append(futures[part])
    return shares
