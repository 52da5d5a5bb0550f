"""Times of an allreduce on the ranks of the job, within a budget of time.

Every rank gets the same times, and so comes to the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ring_keras import _native
from ring_keras.autotune.timing import Timing, time_call

__all__ = ["Stopwatch", "times_by_size"]

_SAMPLES = 5
_WARMUP = 1
# Calls, or samples of short ones, before the first: `time_call` makes two more.
_EXTRA = _WARMUP + 2


class Stopwatch:
    """How much of the budget is left, by the same clock on every rank.

    Args:
        budget_s: Seconds for all measurements together.
    """

    def __init__(self, budget_s: float) -> None:
        self._left_s = budget_s

    def count(self, timing: Timing) -> None:
        """Takes off what a measurement cost."""
        self._left_s -= timing.median_s * timing.calls * (_SAMPLES + _EXTRA)

    def affords(self, call_s: float) -> bool:
        """Whether there is time to measure a call that takes so long."""
        return call_s * (_SAMPLES + _EXTRA) <= self._left_s


def times_by_size(
    sizes_bytes: Sequence[int],
    prepares: Sequence[Callable[[], None]],
    stopwatch: Stopwatch,
) -> list[dict[int, float]]:
    """Seconds of an allreduce by its size, in each of several ways.

    Args:
        sizes_bytes: Ascending. The first is measured in any case, later ones
            while there is time; all ways have the same.
        prepares: Each sets up one way.
        stopwatch: The time there is.

    Returns:
        For each way, the times by size.
    """
    times: list[dict[int, float]] = [{} for _ in prepares]
    data, out = np.ones((2, max(sizes_bytes) // 4), np.float32)
    longest_s = 0.0
    for number, size in enumerate(sizes_bytes):
        if number > 0:
            growth = size / sizes_bytes[number - 1]
            if not stopwatch.affords(longest_s * growth * len(prepares)):
                break
        longest_s = 0.0
        for prepare, measured in zip(prepares, times, strict=True):
            prepare()
            timing = _time_allreduce(data[: size // 4], out[: size // 4])
            stopwatch.count(timing)
            measured[size] = timing.median_s
            longest_s = max(longest_s, timing.median_s)
    return times


def _time_allreduce(data: NDArray[np.float32], out: NDArray[np.float32]) -> Timing:
    def call() -> None:
        _native.allreduce(data, "sum", "autotune/allreduce", out=out)

    return time_call(call, samples=_SAMPLES, warmup=_WARMUP)
