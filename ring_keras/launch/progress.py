"""How fast a job trains, from what its ranks report."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any

from ring_keras.launch.console import BETWEEN_PARTS

__all__ = ["Progress"]

# Rates are those of the last so many reports of a rank, one a second.
_WINDOW = 6
# A rank whose last report is older than that stands still.
_FRESH_S = 2.5
# Beside a step: who is waited for less is nobody's straggler.
_NOTABLE_SHARE = 0.02
# Beside the mean of the others.
_NOTABLE_RATIO = 1.5
# Who waits for longer than that is held up, rather than slowed down.
_LONG_S = 2.0
_MOST_NAMED = 3

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
        """One line for people; empty before the first step, unless it takes long.

        What matters first, so that the rest can be left out.
        """
        now = self._clock()
        held_up = self._held_up(now)
        if not held_up and not any(one["steps"] for one in self.latest.values()):
            return ""
        steps_per_s = max(
            self._increase(rank, "steps") / self._seconds(rank, now)
            for rank in self._reports
        )
        ranks = "1 rank" if self._size == 1 else f"{self._size} ranks"
        parts = [*held_up, ranks, f"{_short(steps_per_s)} steps/s"]
        if not held_up:
            parts += self._slowest()
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
        return BETWEEN_PARTS.join(parts)

    def _held_up(self, now: float) -> list[str]:
        """Whom ranks have waited for all this time, if it is long."""
        longest_s: dict[int, float] = {}
        waiting = set()
        for rank, report in self.latest.items():
            if not self._stands_still(rank, now):
                continue  # What it waits for, it does in the background.
            for other, seconds in report["waits_for_s"].items():
                if seconds >= _LONG_S and int(other) < self._size:
                    waiting.add(rank)
                    longest_s[int(other)] = max(seconds, longest_s.get(int(other), 0.0))
        if not longest_s:
            return []
        # Who waits, too, is held up by others.
        causes = sorted(longest_s.keys() - waiting)
        if not causes:
            ranks, seconds = sorted(longest_s), max(longest_s.values())
            return [f"{_named(ranks)} wait for each other: {seconds:.0f} s"]
        seconds = max(longest_s[rank] for rank in causes)
        return [f"waiting for {_named(causes)}: {seconds:.0f} s", *self._where(causes)]

    def _where(self, ranks: Sequence[int]) -> list[str]:
        """On which host, if there are several and it is one rank."""
        hosts = {self._host_of(rank) for rank in range(self._size)}
        if len(hosts) == 1 or len(ranks) > 1:
            return []
        return [f"rank {ranks[0]} is on {self._host_of(ranks[0])}"]

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
        total_s = sum(
            s for (its_set, _), s in waited_for_s.items() if its_set == process_set
        )
        if seconds < _NOTABLE_RATIO * (total_s - seconds) / others:
            return []  # They are late by turns.
        step_s = max(self._increase(r, "duration_s") for r in members) / steps
        each_s = seconds / others / steps
        if rank >= self._size or each_s < _NOTABLE_SHARE * step_s:
            return []
        costs = f"the others wait {1000 * each_s:.3g} ms a step"
        return [f"slowest: rank {rank}, {costs}", *self._where([rank])]

    def _stands_still(self, rank: int, now: float) -> bool:
        """Whether its reports of the last seconds have as many steps."""
        window = self._reports[rank]
        recent = {one["steps"] for at, one in window if now - at <= _LONG_S}
        return len(recent) == 1 and now - window[-1][0] < _FRESH_S

    def _increase(self, rank: int, name: str) -> float:
        window = self._reports[rank]
        return float(window[-1][1][name] - window[0][1][name])

    def _seconds(self, rank: int, now: float) -> float:
        """Of its reports; until now if they end, so that who stands still shows it."""
        first, last = self._reports[rank][0][0], self._reports[rank][-1][0]
        return max((last if now - last < _FRESH_S else now) - first, 1e-3)


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    *others, last = (
        ranks
        if len(ranks) <= _MOST_NAMED
        else [*ranks[:_MOST_NAMED], f"{len(ranks) - _MOST_NAMED} more"]
    )
    return f"ranks {', '.join(map(str, others))} and {last}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
