"""Who holds the others up, since when, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ring_keras.monitoring.history import History
from ring_keras.monitoring.links import Link, slow_links, sums_of_links

__all__ = ["Reason", "Straggler", "find_stragglers"]

Reason = Literal["compute", "input", "noisy neighbour", "slow link", "unknown"]

# What the others wait for a rank counts from this part of a step on.
_LEAST_PART = 0.03
_LEAST_S = 2e-4
# What a rank takes more than the median explains the others' wait if it is so much
# of it.
_EXPLAINS = 0.5
# A rank that is slow in fewer updates than this part is disturbed now and then.
_STEADY = 0.6
# Who costs less than that part of what the first one costs is left out.
_WORTH_A_WORD = 0.2
# The updates that are looked at: the last ones, and at least so many.
_RECENT_PART = 0.25
_LEAST_RECENT = 5

_Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Straggler:
    """A rank, or a link between two, that holds the others up.

    Attributes:
        rank: The slow one; the sender of a slow link.
        host: Its name.
        reason: "compute" and "input": it takes longer than the others' median there;
            "noisy neighbour": its compute does, but only now and then; "slow link":
            bytes to `peer` move slower than elsewhere; "unknown": the others wait
            for it, and what it measures does not say why.
        lost_s: What it costs each of the others, seconds a step.
        own_s: What it takes there, seconds a step; of a link, 0.
        median_s: What the others take there in the middle.
        since_step: The first step from which on it has been so.
        peer: The other end of a slow link.
        peer_host: Its name.
        bandwidth: Of a slow link, bytes/s.
        usual_bandwidth: Of the links in the middle.
    """

    rank: int
    host: str
    reason: Reason
    lost_s: float
    own_s: float
    median_s: float
    since_step: int
    peer: int | None = None
    peer_host: str = ""
    bandwidth: float = 0.0
    usual_bandwidth: float = 0.0


def find_stragglers(history: History) -> list[Straggler]:
    """Those of the last updates, the one that costs most first."""
    if not history.updates or len(history.ranks) < 2:
        return []
    recent = _recent(len(history.updates))
    found = [
        straggler
        for index in range(len(history.ranks))
        if (straggler := _slow_rank(history, index, recent)) is not None
    ]
    found += _slow_links(history, recent)
    found.sort(key=lambda straggler: -straggler.lost_s)
    # Every rank is the last one now and then.
    return [one for one in found if one.lost_s >= _WORTH_A_WORD * found[0].lost_s]


def _recent(count: int) -> slice:
    return slice(-max(round(count * _RECENT_PART), min(_LEAST_RECENT, count)), None)


def _slow_rank(history: History, index: int, recent: slice) -> Straggler | None:
    lost = history.waited_for[:, index]
    if np.isnan(lost[-1]):  # It has left.
        return None
    least = np.maximum(_LEAST_PART * np.nanmedian(history.duration, axis=1), _LEAST_S)
    if not _mean(lost[recent]) >= _mean(least[recent]):
        return None
    excess = {
        "compute": _excess(history.compute, index),
        "input": _excess(history.input, index),
    }
    reason = max(excess, key=lambda name: _mean(excess[name][0][recent]))
    more, median = excess[reason]
    is_slow = lost >= least
    first = _first(is_slow)
    # What it costs while it is slow, which may be since a moment ago.
    span = slice(max(first, len(lost) + recent.start), None)
    explained = _mean(more[recent]) >= _EXPLAINS * _mean(lost[recent])
    named: Reason = "unknown"
    if explained:
        now_and_then = reason == "compute" and _share(is_slow[recent]) < _STEADY
        named = "noisy neighbour" if now_and_then else _reason(reason)
    return Straggler(
        rank=history.ranks[index],
        host=history.hosts[index],
        reason=named,
        lost_s=_mean(lost[span]),
        own_s=_mean((more + median)[span]),
        median_s=_mean(median[span]),
        since_step=_step_from(first, history.steps),
    )


def _reason(name: str) -> Reason:
    return "input" if name == "input" else "compute"


def _slow_links(history: History, recent: slice) -> list[Straggler]:
    """Those over which the steps' exposed transfer has been waiting."""
    exposed = np.nanmean(history.exposed, axis=1)
    least = np.maximum(_LEAST_PART * np.nanmedian(history.duration, axis=1), _LEAST_S)
    if not _mean(exposed[recent]) >= _mean(least[recent]):
        return []
    hosts = dict(zip(history.ranks, history.hosts, strict=True))
    found = []
    for link, usual in slow_links(
        sums_of_links(
            link for update in history.updates[recent] for link in update.links
        )
    ):
        was_slow = [
            any(_same(link, other) for other, _ in slow_links(update.links))
            for update in history.updates
        ]
        # A link as fast as the others would have taken that part of the time.
        lost_s = _mean(exposed[recent]) * (1 - link.bandwidth / usual)
        found.append(
            Straggler(
                rank=link.sender,
                host=hosts.get(link.sender, ""),
                reason="slow link",
                lost_s=lost_s,
                own_s=0.0,
                median_s=0.0,
                since_step=_step_from(_first(np.array(was_slow)), history.steps),
                peer=link.receiver,
                peer_host=hosts.get(link.receiver, ""),
                bandwidth=link.bandwidth,
                usual_bandwidth=usual,
            )
        )
    return found


def _same(one: Link, other: Link) -> bool:
    return (one.sender, one.receiver) == (other.sender, other.receiver)


def _excess(values: _Array, index: int) -> tuple[_Array, _Array]:
    """What a rank has more than the median of the others, and that median."""
    others = np.nanmedian(np.delete(values, index, axis=1), axis=1)
    return values[:, index] - others, others


def _first(is_slow: NDArray[np.bool_]) -> int:
    """Where the span begins in which most updates are slow, up to now.

    That is where slow updates exceed the others by most, counted from the end.
    """
    score = np.cumsum(np.where(is_slow[::-1], 1, -1))
    return len(is_slow) - 1 - int(np.flatnonzero(score == score.max())[-1])


def _step_from(first: int, steps: Sequence[int]) -> int:
    """The first step of an update; what is written down is its last."""
    return steps[first - 1] + 1 if first > 0 else 0


def _mean(values: _Array) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else 0.0


def _share(flags: NDArray[np.bool_]) -> float:
    return float(flags.mean())
