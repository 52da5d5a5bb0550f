"""What one rank does in the allgathers of a step with a sparse gradient.

As `costs.py` counts it: of `allgather_messages.cc`, and of how the ranks meet before.
"""

from __future__ import annotations

import dataclasses
import itertools

from benchmarks.scaling.costs import RING_MESSAGE_BYTES, Cost, posts

__all__ = [
    "across",
    "announced",
    "around",
    "picked",
    "posted",
    "side_by_side",
]

# How many rows a rank brings, as its post says.
_ROWS_BYTES = 8
# Up to so many hosts allgathers go around; see tuning.h.
_FEW_HOSTS = 8


def announced(hosts: int, per_host: int) -> Cost:
    """Each rank tells each other itself, as for the first two uses of a name."""
    return Cost(trips=1, messages=hosts * per_host - 1)


def posted(hosts: int, per_host: int) -> Cost:
    """Posts tell of all ranks' rows."""
    told = _ROWS_BYTES * (hosts * per_host - 1)
    abroad = _ROWS_BYTES * (hosts - 1) * per_host
    gathered = Cost(wire_bytes=per_host * abroad, copied_bytes=2 * told)
    return posts(hosts, per_host) + gathered


def around(hosts: int, per_host: int, nbytes: float) -> Cost:
    """Once around a ring: one rank of each host sends to the next host."""
    others = hosts * per_host - 1
    return Cost(
        trips=others,
        messages=others,
        wire_bytes=others * nbytes,
        copied_bytes=2 * others * nbytes,
    )


def across(hosts: int, per_host: int, nbytes: float) -> Cost:
    """To ranks that are farther and farther away: all of a host send across."""
    size = hosts * per_host
    trips = (size - 1).bit_length()
    # As circle.h has it.
    known = [-(-size // (1 << (trips - trip))) for trip in range(trips + 1)]
    wire_bytes = sum(
        (after - before) * nbytes * min(before, per_host)
        for before, after in itertools.pairwise(known)
    )
    return Cost(
        trips=trips,
        # What it sends may be in two places.
        messages=2 * trips,
        wire_bytes=wire_bytes,
        copied_bytes=2 * (size - 1) * nbytes,
    )


def picked(hosts: int, per_host: int, nbytes: float) -> Cost:
    """What the engine runs, where ranks lack connections to each other."""
    long = hosts <= _FEW_HOSTS or per_host * nbytes > RING_MESSAGE_BYTES
    return (around if long else across)(hosts, per_host, nbytes)


def side_by_side(one: Cost, other: Cost) -> Cost:
    """Two collectives at once: their work adds up, their trips do not."""
    return dataclasses.replace(
        one + other,
        trips=max(one.trips, other.trips),
        syncs=max(one.syncs, other.syncs),
    )
