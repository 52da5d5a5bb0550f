"""How fast a job trains, from what its ranks report."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Progress"]

# Rates are those of the last so many reports of a rank, one a second.
_WINDOW = 6
# A rank whose last report is older than that stands still.
_FRESH_S = 2.5
# Beside a step: who is waited for less is nobody's straggler.
_NOTABLE_SHARE = 0.02

Report = dict[str, Any]


class Progress:
    """The latest reports of each rank.

    Args:
        size: How many ranks there are.
        host_of: The name of a rank's host.
        clock: In seconds.
    """

    def __init__(
        self,
        size: int,
        host_of: Callable[[int], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._size = size
        self._host_of = host_of
        self._clock = clock
        self._reports: dict[int, collections.deque[tuple[float, Report]]] = {}
        self.latest: dict[int, Report] = {}
        """By rank."""

    def take(self, report: Report) -> None:
        """Takes a rank's report, whose sums are those since its `init()`."""
        rank = report["rank"]
        if rank >= self._size:
            return
        window = self._reports.setdefault(rank, collections.deque(maxlen=_WINDOW))
        if window and report["steps"] < window[-1][1]["steps"]:
            window.clear()  # Another membership has begun.
        window.append((self._clock(), report))
        self.latest[rank] = report

    def line(self) -> str:
        """One line for people; empty before the first step."""
        if not any(report["steps"] for report in self.latest.values()):
            return ""
        now = self._clock()
        steps_per_s = max(
            self._increase(rank, "steps") / self._seconds(rank, now)
            for rank in self._reports
        )
        ranks = "1 rank" if self._size == 1 else f"{self._size} ranks"
        parts = [ranks, f"{_short(steps_per_s)} steps/s"]
        examples_per_s = sum(
            self._increase(rank, "examples") / self._seconds(rank, now)
            for rank in self._reports
        )
        if examples_per_s:
            parts.append(f"{_short(examples_per_s)} examples/s")
        duration_s = sum(self._increase(rank, "duration_s") for rank in self._reports)
        if duration_s:
            wait_s = sum(self._increase(rank, "wait_s") for rank in self._reports)
            parts.append(f"{wait_s / duration_s:.0%} waiting")
        parts += self._slowest()
        return " | ".join(parts)

    def _slowest(self) -> list[str]:
        """Whom the others wait for, if for anybody."""
        # By the number of the ranks' process set, and the rank.
        waited_for_s: collections.Counter[tuple[int, int]] = collections.Counter()
        for window in self._reports.values():
            process_set = window[-1][1]["process_set"]
            first, last = window[0][1]["waited_for_s"], window[-1][1]["waited_for_s"]
            # Of many ranks, a report names those that were waited for most: who is new
            # in a list that has not grown had at most what the last of it had.
            unnamed = min(first.values(), default=0.0) if len(first) >= len(last) else 0
            for rank, seconds in last.items():
                waited_for_s[process_set, int(rank)] += seconds - first.get(
                    rank, unnamed
                )
        if not waited_for_s:
            return []
        (process_set, rank), seconds = waited_for_s.most_common(1)[0]
        members = [
            r for r, one in self.latest.items() if one["process_set"] == process_set
        ]
        steps = max(self._increase(r, "steps") for r in members)
        others = (len(members) if process_set else self._size) - 1
        if not steps or not others:
            return []
        step_s = max(self._increase(r, "duration_s") for r in members) / steps
        each_s = seconds / others / steps
        if rank >= self._size or each_s < _NOTABLE_SHARE * step_s:
            return []
        host = self._host_of(rank)
        costs = f"the others wait {1000 * each_s:.3g} ms a step"
        return [f"slowest: rank {rank} ({host}), {costs}"]

    def _increase(self, rank: int, name: str) -> float:
        window = self._reports[rank]
        return float(window[-1][1][name] - window[0][1][name])

    def _seconds(self, rank: int, now: float) -> float:
        """Of its reports; until now if they end, so that who stands still shows it."""
        first, last = self._reports[rank][0][0], self._reports[rank][-1][0]
        return max((last if now - last < _FRESH_S else now) - first, 1e-3)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
