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
    the collection's own matter. Collections with the same number of rows must have
    them in the same partitions, and are divided alike.

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
    client: distributed.Client, collections: Sequence[Any], workers: Sequence[str]
) -> list[list[list[distributed.Future]]]:
    """Computes collections on the cluster, and gives each rank its partitions of each.

    Those of as many rows are divided alike: rows that belong together stay so.

    Args:
        client: Of the cluster.
        collections: What to divide.
        workers: The address of each rank's worker.

    Returns:
        By rank, and then by collection.

    Raises:
        ValueError: If there are fewer partitions than ranks, or collections of as many
            rows have other partitions.
    """
    parts = [_partitions(collection) for collection in collections]
    for own in parts:
        if len(own) < len(workers):
            raise ValueError(
                f"shard(): {len(workers)} ranks need a partition each, and the "
                f"collection has {len(own)}. Divide it anew: "
                "repartition(npartitions=...) or rechunk(...)."
            )
    # At once, so that what several of them come from is computed once.
    computed = iter(client.compute([part for own in parts for part in own]))
    futures = [[next(computed) for _ in own] for own in parts]
    distributed.wait([future for own in futures for future in own])
    _require_alike(client, futures)
    by_count: dict[int, list[int]] = {}
    shares: list[list[list[distributed.Future]]] = [[] for _ in workers]
    for own in futures:
        if len(own) not in by_count:
            holders = client.who_has(own)
            by_count[len(own)] = _share_out(
                [set(holders[future.key]) for future in own], workers
            )
        ranks = by_count[len(own)]
        for rank, share in enumerate(shares):
            share.append([f for f, its in zip(own, ranks, strict=True) if its == rank])
    return shares


def _require_alike(
    client: distributed.Client, futures: Sequence[Sequence[distributed.Future]]
) -> None:
    """Rows of images and of their labels would else go to other ranks, unnoticed."""
    lengths: dict[int, list[int]] = {}
    for own in futures:
        rows = client.gather(client.map(len, own, pure=False))
        alike = lengths.setdefault(sum(rows), rows)
        if rows != alike:
            raise ValueError(
                f"shard(): two collections of {sum(rows)} rows have other partitions: "
                f"{alike} and {rows} rows. If they belong together, rows of one would "
                "not meet theirs of the other. Partition them alike: rechunk(...) or "
                "repartition(...)."
            )


def _partitions(collection: Any) -> list[Any]:
    """In their order; of an array's, whole rows."""
    if getattr(collection, "ndim", 1) > 1 and hasattr(collection, "rechunk"):
        collection = collection.rechunk(dict.fromkeys(range(1, collection.ndim), -1))
    delayed = np.asarray(collection.to_delayed(), dtype=object)
    partitions: list[Any] = np.ravel(delayed).tolist()
    return partitions


def _share_out(holders: Sequence[set[str]], workers: Sequence[str]) -> list[int]:
    """The rank of each partition: equally, and as far as that goes who has it.

    Args:
        holders: The workers that have each partition.
        workers: The address of each rank's worker.
    """
    count, more = divmod(len(holders), len(workers))
    room = [count + (rank < more) for rank in range(len(workers))]
    rank_of: dict[int, int] = {}
    for wants_own in (True, False):
        for part, own in enumerate(holders):
            ranks = [rank for rank, left in enumerate(room) if left > 0]
            if wants_own:
                ranks = [rank for rank in ranks if workers[rank] in own]
            if part not in rank_of and ranks:
                rank_of[part] = max(ranks, key=lambda rank: room[rank])
                room[rank_of[part]] -= 1
    return [rank_of[part] for part in range(len(holders))]
