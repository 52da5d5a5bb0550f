"""How far the clocks of the ranks' hosts are apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ring_keras import _native

__all__ = ["Clock", "Offset", "bounds_of", "measure_offset"]

_ROUNDS = 20


@dataclass(frozen=True)
class Offset:
    """How far a rank's clock was ahead of rank 0's, at a moment of its own.

    Attributes:
        at: In seconds since 1970, by that rank's clock.
        ahead_s: By how much, more or less.
        error_s: It is not farther from that than this.
    """

    at: float
    ahead_s: float
    error_s: float


@dataclass(frozen=True)
class Clock:
    """A rank's clock between two measurements; between them it drifts evenly."""

    first: Offset
    last: Offset

    @property
    def error_s(self) -> float:
        """The larger of both."""
        return max(self.first.error_s, self.last.error_s)

    def corrected(self, moment: float) -> float:
        """The same moment by rank 0's clock."""
        span = self.last.at - self.first.at
        part = (moment - self.first.at) / span if span > 0 else 0.0
        drift = self.last.ahead_s - self.first.ahead_s
        return moment - self.first.ahead_s - part * drift


def measure_offset() -> Offset:
    """Measures this rank's clock; collective.

    No rank leaves a barrier before every rank has entered it. So what this rank's
    clock says when it leaves is not before what rank 0's said when that entered, and
    the other way round; each barrier gives an upper and a lower bound, and the
    tightest are kept.
    """
    moments = []
    for _ in range(_ROUNDS):
        entered = time.time()
        _native.barrier("timeline/clock")
        moments.append((entered, time.time()))
    rank, *_ = _native.topology()
    all_moments = _native.allgather(np.array([moments]), "timeline/moments")
    low, high = bounds_of(all_moments[rank], all_moments[0])
    if rank == 0:
        low = high = 0.0
    return Offset(moments[-1][1], (low + high) / 2, (high - low) / 2)


def bounds_of(own: Sequence[object], other: Sequence[object]) -> tuple[float, float]:
    """Bounds of how far `own` clock is ahead of the `other`.

    Args:
        own: For each barrier, when this rank entered and left it.
        other: When the other rank did, by its clock.
    """
    mine, theirs = np.asarray(own, float), np.asarray(other, float)
    low = float(np.max(mine[:, 0] - theirs[:, 1]))
    high = float(np.min(mine[:, 1] - theirs[:, 0]))
    return low, high
