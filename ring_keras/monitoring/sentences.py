"""What there is to say of a run, in a sentence each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ring_keras.monitoring.history import History
from ring_keras.monitoring.stragglers import Straggler

__all__ = ["headline", "sentence_of"]


def headline(history: History, stragglers: Sequence[Straggler]) -> str:
    """What to know first."""
    if not history.updates:
        return "No step has been measured yet."
    if stragglers:
        return sentence_of(stragglers[0])
    whole_s = float(np.nanmean(history.duration[-1]))
    share = np.nanmean(history.compute[-1]) / whole_s
    of_a_step = f"{share:.0%} of a step's {_seconds(whole_s)}."
    if len(history.ranks) == 1:
        return f"One rank trains: it computes {of_a_step}"
    return f"No rank holds the others up: the ranks compute {of_a_step}"


def sentence_of(straggler: Straggler) -> str:
    """Who is slow, at what, since when, and what it costs."""
    one = straggler
    since = f"since step {one.since_step:,}" if one.since_step else "from the beginning"
    if one.reason == "slow link":
        return (
            f"The link from rank {one.rank}{_of_host(one.host)} to rank {one.peer}"
            f"{_of_host(one.peer_host)} is slow: {_rate(one.bandwidth)} where other "
            f"links have {_rate(one.usual_bandwidth)} {since}; it costs every rank "
            f"{_seconds(one.lost_s)} a step."
        )
    what = {
        "compute": f"its compute takes {_times(one)} {since}",
        "input": (
            f"it waits {_seconds(one.own_s)} a step for its input, where others wait "
            f"{_seconds(one.median_s)}, {since}"
        ),
        "noisy neighbour": (
            "its compute takes longer now and then, as where something else runs on "
            f"its host, {since}"
        ),
        "unknown": f"what it measures does not say why; {since}",
    }[one.reason]
    return (
        f"Rank {one.rank}{_of_host(one.host)} is slow: {what}; the others wait "
        f"{_seconds(one.lost_s)} a step for it."
    )


def _of_host(host: str) -> str:
    return f" (host {host})" if host else ""


def _times(one: Straggler) -> str:
    if one.median_s <= 0:
        return f"{_seconds(one.own_s)}, the median none,"
    return f"{one.own_s / one.median_s:.1f} x the median"


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        milliseconds = seconds * 1e3
        digits = 0 if milliseconds >= 10 else 1
        return f"{milliseconds:.{digits}f} ms"
    return f"{seconds * 1e6:.0f} us"


def _rate(bytes_per_s: float) -> str:
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.3g} {unit}"
    return f"{bytes_per_s:.3g} B/s"
