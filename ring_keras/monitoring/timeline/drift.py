"""How far clocks had drifted by the end, from the collectives themselves.

At the end of a job a rank may be the only one that is left, so nobody can ask the
others for the time. But no rank sees that all have arrived at a collective before each
of them has, which bounds how far clocks are apart as a barrier's two ends do.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ring_keras.monitoring.timeline.clocks import Clock, Offset, bounds_of
from ring_keras.monitoring.timeline.merged import RankTimeline, numbered

__all__ = ["with_drift"]

# What counts as the end: so many collectives, of so many seconds.
_LAST = 100
_LAST_S = 5.0
# A rank that finds all there looks at no clock again, and may be so much too early.
_LOOK_S = 1e-6
# Faster than a clock drifts, or is made to: the records are not of the same ones.
_MOST_DRIFT = 1e-3

_Span = tuple[float, float]


def with_drift(ranks: Sequence[RankTimeline]) -> list[RankTimeline]:
    """The same, with what each one's clock was like at the end.

    A clock is moved only as far as the collectives prove that it has drifted: where
    one rank is always the last, they prove little, and its error says so.

    Args:
        ranks: Whose clocks have been measured at the beginning only, of one
            membership or several.
    """
    flows: dict[Any, int] = {}
    sizes = Counter(rank.generation for rank in ranks)
    spans = [dict(_ends(rank, sizes[rank.generation], flows)) for rank in ranks]
    first = {
        rank.generation: own
        for rank, own in zip(ranks, spans, strict=True)
        if rank.rank == 0
    }
    return [
        _corrected(rank, own, first.get(rank.generation, {})) if rank.rank else rank
        for rank, own in zip(ranks, spans, strict=True)
    ]


def _ends(
    rank: RankTimeline, size: int, flows: dict[Any, int]
) -> Iterator[tuple[int, _Span]]:
    """When it arrived at each collective of all ranks, and when all had."""
    for record, flow in numbered(rank, flows):
        if record["ranks"] != size or rank.lost:
            continue
        if record["outcome"] == "ok" and record["matched_at"] is not None:
            yield flow, (record["arrived_at"], record["matched_at"] + _LOOK_S)


def _corrected(
    rank: RankTimeline, own: Mapping[int, _Span], theirs: Mapping[int, _Span]
) -> RankTimeline:
    common = [flow for flow in own if flow in theirs][-_LAST:]
    if not common:
        return rank
    at = own[common[-1]][1]
    common = [flow for flow in common if own[flow][1] > at - _LAST_S]
    # The first may be above the second, for it drifts meanwhile.
    bounds = bounds_of(
        [own[flow] for flow in common], [theirs[flow] for flow in common]
    )
    low, high = sorted(bounds)
    start = rank.clock.first
    ahead_s = min(max(start.ahead_s, low), high)
    drift_s = max(abs(ahead_s - start.ahead_s) - start.error_s, 0.0)
    most_s = _MOST_DRIFT * (at - start.at)
    if drift_s > most_s or bounds[0] - bounds[1] > most_s:
        return rank
    last = Offset(at, ahead_s, max(high - ahead_s, ahead_s - low))
    return dataclasses.replace(rank, clock=Clock(start, last))
