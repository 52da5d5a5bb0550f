"""What each collective takes and gives, and what it must move at least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ring_keras.benchmark.values import Array, filled, reduced

__all__ = ["COLLECTIVES", "Collective"]


@dataclass(frozen=True)
class Collective:
    """One collective, as the benchmark sees it.

    The `count` of its functions is of the larger of a rank's input and output.

    Attributes:
        name: As the user writes it.
        bus_factor: Bytes that the busiest connection of `size` ranks must carry,
            in each direction, per byte of the buffer.
        reduces: Whether there is an op.
        divides: Whether a buffer has a part for each rank.
        input: `(rank, size, count, dtype)` to what the rank puts in.
        output: `(rank, size, count, dtype, op)` to what it must get.
    """

    name: str
    bus_factor: Callable[[int], float]
    reduces: bool
    divides: bool
    input: Callable[[int, int, int, str], Array]
    output: Callable[[int, int, int, str, str], Array]

    def count(self, nbytes: int, itemsize: int, size: int) -> int:
        """The elements of a buffer of about `nbytes`; at least one, or one each."""
        parts = size if self.divides else 1
        return max(1, nbytes // itemsize // parts) * parts


def _whole_input(rank: int, size: int, count: int, dtype: str) -> Array:
    return filled(rank, count, dtype)


def _own_part_input(rank: int, size: int, count: int, dtype: str) -> Array:
    return filled(rank, count // size, dtype)


def _allreduced(rank: int, size: int, count: int, dtype: str, op: str) -> Array:
    return reduced(size, count, dtype, op)


def _allgathered(rank: int, size: int, count: int, dtype: str, op: str) -> Array:
    return np.concatenate([filled(one, count // size, dtype) for one in range(size)])


def _broadcast(rank: int, size: int, count: int, dtype: str, op: str) -> Array:
    return filled(0, count, dtype)


def _reduce_scattered(rank: int, size: int, count: int, dtype: str, op: str) -> Array:
    return reduced(size, count, dtype, op)[_part(rank, size, count)]


def _exchanged(rank: int, size: int, count: int, dtype: str, op: str) -> Array:
    part = _part(rank, size, count)
    return np.concatenate([filled(one, count, dtype)[part] for one in range(size)])


def _part(rank: int, size: int, count: int) -> slice:
    length = count // size
    return slice(rank * length, (rank + 1) * length)


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective(
            name="allreduce",
            bus_factor=lambda size: 2 * (size - 1) / size,
            reduces=True,
            divides=False,
            input=_whole_input,
            output=_allreduced,
        ),
        Collective(
            name="allgather",
            bus_factor=lambda size: (size - 1) / size,
            reduces=False,
            divides=True,
            input=_own_part_input,
            output=_allgathered,
        ),
        Collective(
            name="broadcast",
            bus_factor=lambda size: 1.0,
            reduces=False,
            divides=False,
            input=_whole_input,
            output=_broadcast,
        ),
        Collective(
            name="reduce_scatter",
            bus_factor=lambda size: (size - 1) / size,
            reduces=True,
            divides=True,
            input=_whole_input,
            output=_reduce_scattered,
        ),
        Collective(
            name="alltoall",
            bus_factor=lambda size: (size - 1) / size,
            reduces=False,
            divides=True,
            input=_whole_input,
            output=_exchanged,
        ),
    )
}
