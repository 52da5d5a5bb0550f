"""What this rank did since it was last asked."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Any

from ring_keras import _native
from ring_keras.monitoring.links import Link
from ring_keras.monitoring.recorder import Collective
from ring_keras.monitoring.rows import Row
from ring_keras.monitoring.stats import Stats, StepStats, stats

__all__ = ["Meter", "collective_totals", "common_step"]

# Of one step; more are not told apart on a screen.
_MOST_COLLECTIVES = 64
# To look for the last steps in.
_RECENT = 512
_TIMES = (
    "arrived_at",
    "matched_at",
    "first_byte_at",
    "last_byte_at",
    "done_at",
)


class Meter:
    """Takes the differences of `ring.stats()`; made where the first span begins."""

    def __init__(self) -> None:
        now = stats(most_steps=0)
        self._totals = now.totals
        self._links = now.links
        _, self._number = _native.long_waits(0, math.inf)

    def row(self) -> Row:
        """Of the steps since the last call."""
        now = stats(most_steps=0)
        row = Row.between(now.rank, now.host, self._totals, now.totals)
        self._totals = now.totals
        before = {link.receiver: link for link in self._links}
        self._links = now.links
        sent = (link.minus(before.get(link.receiver)) for link in now.links)
        return dataclasses.replace(row, links=_used(sent))

    def long_waits(self, at_least_s: float) -> list[Collective]:
        """Collectives that have ended since the last call, after so long a wait.

        There are thousands of others, and to make Python's objects of them would
        take milliseconds.
        """
        records, self._number = _native.long_waits(self._number, at_least_s)
        return [Collective(**one) for one in records]

    def last_steps(self, process_set: int, number: int) -> list[dict[str, Any]]:
        """This rank's last two steps with their collectives; fewer at the beginning.

        The very last one may not be complete on every rank yet. Times are Unix
        seconds of this rank's clock.

        Args:
            process_set: The number of the ranks with which it has taken them.
            number: That of the step in which it is, or which it has just ended, as
                TensorBoard's axis has it. The engine counts all since `init()`.
        """
        now = stats(most_steps=2)
        # Later, so that none of those steps' own is missing.
        collectives = _native.recent_collectives(max(self._number - _RECENT, 0))
        return _last_steps(now, collectives, process_set, number)


def _last_steps(
    now: Stats,
    collectives: Sequence[dict[str, Any]],
    process_set: int,
    number: int,
) -> list[dict[str, Any]]:
    # That in which this rank is: it may be open, and then `now` does not have it.
    latest = max(
        (one["step"] for one in collectives if one["process_set"] == process_set),
        default=0,
    )
    found = []
    for step in now.steps:
        if step.process_set != process_set:
            continue
        found.append(
            {
                "rank": now.rank,
                "host": now.host,
                "step": number - max(latest - step.step, 0),
                "began_at": step.began_at,
                "duration_s": step.duration_s,
                "input_s": step.input_s,
                "compute_s": step.compute_s,
                "wait_s": step.wait_s,
                "exposed_s": step.exposed_s,
                "last_rank": step.last_rank,
                "collectives": [
                    {
                        "name": one["name"],
                        "bytes": one["bytes"],
                        "last_rank": one["last_rank"],
                        "at_s": [_since(step.began_at, one[at]) for at in _TIMES],
                    }
                    for one in _within(collectives, step)
                ],
            }
        )
    return found


def _within(
    collectives: Sequence[dict[str, Any]], step: StepStats
) -> list[dict[str, Any]]:
    """All that this rank was in while the step lasted, also those of no step.

    As `step` counts them: a question that the ranks ask each other takes its time too.
    One that was given up before this rank was in it has no times but its end.
    """
    ended_at = step.began_at + step.duration_s
    found = [
        one
        for one in collectives
        if one["submitted_at"]
        and one["done_at"]
        and one["done_at"] > step.began_at
        and one["submitted_at"] < ended_at
    ]
    if len(found) <= _MOST_COLLECTIVES:
        return found
    # Those that took longest tell where the time went.
    return heapq.nlargest(
        _MOST_COLLECTIVES, found, key=lambda one: one["done_at"] - one["submitted_at"]
    )


def common_step(by_rank: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What each rank says of the last step that all have; empty without one.

    Args:
        by_rank: What `Meter.last_steps` gave on each.
    """
    numbers = [{step["step"] for step in steps} for steps in by_rank]
    common = set.intersection(*numbers) if numbers else set()
    if not common:
        return []
    last = max(common)
    return [step for steps in by_rank for step in steps if step["step"] == last]


def collective_totals() -> list[dict[str, Any]]:
    """Of this rank, by kind, algorithm and size."""
    return [dataclasses.asdict(one) for one in stats(most_steps=0).collectives]


def _since(began_at: float, at: float | None) -> float | None:
    return round(at - began_at, 7) if at else None


def _used(sent: Iterable[Link]) -> tuple[Link, ...]:
    return tuple(link for link in sent if link.bytes)
