"""Times a call on all ranks at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ring_keras import _native

__all__ = ["Timing", "time_call"]

# A sample shorter than this would measure the clock and the barrier before it.
_SAMPLE_S = 2e-3


@dataclass(frozen=True)
class Timing:
    """Seconds of one call on the slowest rank, over the samples.

    Attributes:
        median_s: The figure to quote.
        least_s: Of the fastest sample.
        greatest_s: Of the slowest sample.
        calls: In each sample.
    """

    median_s: float
    least_s: float
    greatest_s: float
    calls: int


def time_call(
    call: Callable[[], object],
    *,
    samples: int,
    warmup: int,
    finish: Callable[[], object] = lambda: None,
) -> Timing:
    """Times `call`, a collective; every rank gets the same timing.

    A sample counts the time of the rank that took longest, from a barrier on.

    Args:
        call: Takes part in the collective once.
        samples: How many to take.
        warmup: Calls before the first.
        finish: Waits until what the calls began is done. A sample ends then.
    """

    def run(calls: int) -> float:
        return _run(call, calls, finish)

    run(warmup)
    calls = _agreed_calls(run(1))
    # Connections and processors get up to speed meanwhile.
    calls = _agreed_calls(run(calls) / calls)
    own = np.array([run(calls) / calls for _ in range(samples)])
    slowest = _native.allreduce(own, "max", "timing/samples")
    return Timing(
        median_s=float(np.median(slowest)),
        least_s=float(slowest.min()),
        greatest_s=float(slowest.max()),
        calls=calls,
    )


def _run(call: Callable[[], object], calls: int, finish: Callable[[], object]) -> float:
    """Seconds of `calls` calls in a row, from a barrier on."""
    _native.barrier("timing/start")
    start = time.perf_counter()
    for _ in range(calls):
        call()
    finish()
    return time.perf_counter() - start


def _agreed_calls(one_call_s: float) -> int:
    """Calls per sample: as many on every rank."""
    longest = _native.allreduce(np.array([one_call_s]), "max", "timing/calls")
    return max(1, math.ceil(_SAMPLE_S / float(longest[0])))
