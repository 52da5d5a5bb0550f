"""Where each rank of a job is among the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["GENERATION", "Place", "places_of"]

GENERATION = 0
"""Of the ranks that a job begins with."""


@dataclass(frozen=True)
class Place:
    """One rank's numbers.

    Attributes:
        rank: Among all, host after host.
        size: How many there are.
        local_rank: Among those of its host.
        local_size: How many its host has.
        cross_rank: Among those with its `local_rank`, host after host.
        cross_size: How many of these there are.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def places_of(counts: Sequence[int]) -> list[list[Place]]:
    """The places of each host's ranks, for hosts with so many ranks each."""
    return [
        [
            Place(
                rank=sum(counts[:host]) + local_rank,
                size=sum(counts),
                local_rank=local_rank,
                local_size=count,
                cross_rank=sum(other > local_rank for other in counts[:host]),
                cross_size=sum(other > local_rank for other in counts),
            )
            for local_rank in range(count)
        ]
        for host, count in enumerate(counts)
    ]
