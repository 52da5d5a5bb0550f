"""From measured times to settings. Pure functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

__all__ = ["best_bucket_bytes", "best_thresholds", "beyond_measured"]

# Gradients of a model of middling size, for which buckets are chosen.
_MODEL_BYTES = 64 << 20


def best_thresholds(
    times_s: Sequence[Mapping[int, float]], fixed: Sequence[int | None]
) -> list[int]:
    """The thresholds with which the measured sizes take the least time.

    What counts is the product of the times: a size that takes long by nature
    weighs no more than a small one.

    Args:
        times_s: For each algorithm, in the order of the sizes for which they are
            meant, the time by size in bytes. All have the same sizes.
        fixed: For each algorithm but the last, the most bytes that it must take,
            or None to choose.

    Returns:
        The most bytes for each algorithm but the last. Of equally good ones, the
        lowest.
    """
    sizes = sorted(times_s[0])

    def cost(thresholds: tuple[int, ...]) -> float:
        total = 0.0
        for size in sizes:
            picked = [i for i, most in enumerate(thresholds) if size <= most]
            algorithm = picked[0] if picked else len(thresholds)
            total += math.log(times_s[algorithm][size])
        return total

    choices = [[0, *sizes] if one is None else [one] for one in fixed]
    best: tuple[int, ...] = min(itertools.product(*choices), key=cost)
    return list(best)


def beyond_measured(threshold: int, sizes: Collection[int], usual: int) -> int:
    """The threshold of an algorithm that may be the best above what was measured.

    Args:
        threshold: The one that was chosen.
        sizes: Those measured.
        usual: The threshold without any measurement; holds if it is higher and the
            algorithm took the largest size.
    """
    return max(threshold, usual) if threshold >= max(sizes) else threshold


def best_bucket_bytes(times_s: Mapping[int, float]) -> int:
    """The size with the shortest step, of the times of an allreduce by size.

    All buckets of a model one after the other, and one again: the last one is
    complete only when backward is over, so nothing hides it. Where a time is
    latency + size / rate, the best size is sqrt(latency * rate * model's size).
    """
    return min(times_s, key=lambda size: times_s[size] * (_MODEL_BYTES / size + 1))
