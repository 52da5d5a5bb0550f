"""What moved between two measurements of the same, beyond noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import format_seconds, table

__all__ = ["Change", "change_of", "compare_runs", "report_changes"]

# Of an interval for the median: it has the true one with this probability.
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Change:
    """How the seconds of one figure changed.

    Attributes:
        before: The median of the rounds.
        after: The same.
        ratio: The median of what each round took after, divided by before.
        low: Where the ratio's confidence interval begins.
        high: Where it ends.
    """

    before: float
    after: float
    ratio: float
    low: float
    high: float

    @property
    def moved(self) -> bool:
        """Whether the interval leaves out "as before"."""
        return not self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """In a word."""
        if not self.moved:
            return "same"
        return "slower" if self.ratio > 1 else "faster"


def change_of(before: Sequence[float], after: Sequence[float]) -> Change | None:
    """Compares rounds that were measured in turn, pair by pair.

    The interval is that of the sign test: the k-th least to the k-th largest ratio,
    which supposes nothing of how noise is distributed.

    Args:
        before: Seconds, a figure a round.
        after: The same.

    Returns:
        None if there are too few pairs for such an interval, which needs six.
    """
    ratios = sorted(b / a for a, b in zip(before, after, strict=False))
    outside = _outside(len(ratios))
    if outside is None:
        return None
    return Change(
        before=statistics.median(before),
        after=statistics.median(after),
        ratio=statistics.median(ratios),
        low=ratios[outside],
        high=ratios[-1 - outside],
    )


def compare_runs(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, dict[tuple[str, str], Change | None]]:
    """Changes by section, then by row and column, of what both have.

    Args:
        before: What `--json` wrote.
        after: The same.
    """
    later = {section["title"]: section["seconds"] for section in after["sections"]}
    return {
        section["title"]: {
            (row, column): change_of(rounds, later[section["title"]][row][column])
            for row, columns in section["seconds"].items()
            for column, rounds in columns.items()
            if column in later[section["title"]].get(row, {})
        }
        for section in before["sections"]
        if section["title"] in later
    }


def report_changes(title: str, changes: Mapping[tuple[str, str], Change | None]) -> str:
    """A table of them."""
    rows = [
        [f"{row}, {column}", *_cells(change)]
        for (row, column), change in changes.items()
    ]
    head = ["", "before", "after", "after / before", "95 % interval", ""]
    return f"## {title}: changes\n\n{table(head, rows)}\n"


def _cells(change: Change | None) -> list[str]:
    if change is None:
        return ["", "", "", "", "too few rounds"]
    return [
        format_seconds(change.before),
        format_seconds(change.after),
        f"{change.ratio:.3f}",
        f"{change.low:.3f}-{change.high:.3f}",
        change.verdict,
    ]


def _outside(count: int) -> int | None:
    """How many ratios at each end the interval may leave out."""
    tail, outside = 0.0, None
    for number in range(count // 2):
        tail += math.comb(count, number) / 2**count
        if 2 * tail > 1 - _CONFIDENCE:
            break
        outside = number
    return outside
