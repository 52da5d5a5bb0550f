"""Parts of a divided state on their way from rank to rank."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ring_keras import _native

__all__ = ["Key", "Values", "exchange", "keepers_of", "same_bits", "sources"]

Values: TypeAlias = npt.NDArray[Any]
"""What a part has, as one row."""


class Key(NamedTuple):
    """Some elements of a divided state.

    Attributes:
        optimizer: Its place among those whose state is divided.
        number: Which of its variables that are divided.
        begin: The first element.
        end: The one after the last.
    """

    optimizer: int
    number: int
    begin: int
    end: int

    def overlap(self, other: "Key") -> "Key | None":
        """What both have."""
        if self[:2] != other[:2]:
            return None
        common = self._replace(
            begin=max(self.begin, other.begin), end=min(self.end, other.end)
        )
        return common if common.begin < common.end else None

    def of(self, whole: "Key", values: Values) -> Values:
        """These elements in the values of more of them."""
        return values[self.begin - whole.begin : self.end - whole.begin]


def keepers_of(hosts: Sequence[str]) -> list[int]:
    """By rank: who keeps a copy of its part; on the next host, if there are several."""
    ranks_of: dict[str, list[int]] = {}
    for of, host in enumerate(hosts):
        ranks_of.setdefault(host, []).append(of)
    if len(ranks_of) == 1:
        return [(of + 1) % len(hosts) for of in range(len(hosts))]
    names = list(ranks_of)
    keepers = []
    for of, host in enumerate(hosts):
        there = ranks_of[names[(names.index(host) + 1) % len(names)]]
        keepers.append(there[ranks_of[host].index(of) % len(there)])
    return keepers


def sources(
    wanted: Key, held: Sequence[Iterable[Key]], first: int
) -> list[tuple[int, Key, Key]] | None:
    """Where to take elements from.

    Args:
        wanted: They.
        held: By rank: what it has.
        first: The rank to ask first; then come the others in their order.

    Returns:
        Ranks, what each of them has, and what of that to take: together all that is
        wanted, in its order. None if nobody has some of it.
    """
    ranks = [first, *(rank for rank in range(len(held)) if rank != first)]
    found: list[tuple[int, Key, Key]] = []
    begin = wanted.begin
    while begin < wanted.end:
        rest = wanted._replace(begin=begin)
        for rank in ranks:
            its = next(
                (
                    (key, common)
                    for key in held[rank]
                    if (common := rest.overlap(key)) and common.begin == begin
                ),
                None,
            )
            if its is not None:
                found.append((rank, *its))
                begin = its[1].end
                break
        else:
            return None
    return found


def exchange(
    sent: Sequence[Sequence[Values]],
    wanted: Sequence[Sequence[tuple[Key, npt.DTypeLike]]],
    name: str,
) -> dict[Key, Values]:
    """Has ranks send each other parts, which both sides know; collective.

    Args:
        sent: By rank, to which.
        wanted: By rank, from which, in the order in which that one sends them.
        name: The request's.
    """
    rows = [sum(value.nbytes for value in its) for its in sent]
    flat = [_bytes(value) for its in sent for value in its]
    array = np.concatenate(flat) if flat else np.zeros(0, np.uint8)
    received, _ = _native.alltoall(array, rows, name)
    found: dict[Key, Values] = {}
    begin = 0
    for key, dtype in (item for its in wanted for item in its):
        end = begin + (key.end - key.begin) * np.dtype(dtype).itemsize
        found[key] = received[begin:end].view(dtype)
        begin = end
    return found


def same_bits(one: Values, other: Values) -> bool:
    """Whether two parts are the same."""
    return np.array_equal(_bytes(one), _bytes(other))


def _bytes(value: Values) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
