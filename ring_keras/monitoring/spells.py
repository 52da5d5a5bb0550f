"""When something was slow: all the time since then, now and then, or no more."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pattern", "Spell"]

Pattern = Literal["steady", "now and then", "past"]

# So many updates in a row that are not slow end a spell.
_QUIET = 5
# A spell has so many more slow updates than twice the others. Of a rank that is
# disturbed in three of ten updates by chance, one spell in a hundred has.
_LEAST_SCORE = 5


@dataclasses.dataclass(frozen=True)
class Spell:
    """The last time that something was slow.

    Attributes:
        pattern: "steady": until now; "past": no more; "now and then": there is no span
            in which it was slow most of the time.
        first: Its first update.
        last: Its last slow update.
        updates: Those that tell what it costs.
        slow: The slow ones of them, and of "now and then" how many there are.
    """

    pattern: Pattern
    first: int
    last: int
    updates: slice
    slow: NDArray[np.int64]

    @classmethod
    def of(cls, is_slow: NDArray[np.bool_], recent: int) -> Spell:
        """The last one.

        Args:
            is_slow: By update, oldest first; one of the recent ones is.
            recent: So many of the last updates tell how it is now.
        """
        slow = np.flatnonzero(is_slow)
        last = int(slow[-1])
        count = len(is_slow)
        start = count - recent
        first, score = _densest_end(is_slow, slow)
        if score < min(_LEAST_SCORE, count):
            within = slow[slow >= start]
            return cls("now and then", int(within[0]), last, slice(start, None), within)
        if count - 1 - last >= _QUIET:
            span = slice(first, last + 1)
            return cls("past", first, last, span, slow[slow >= first])
        span = slice(max(first, start), None)
        return cls("steady", first, last, span, slow[slow >= max(first, start)])


def _densest_end(
    is_slow: NDArray[np.bool_], slow: NDArray[np.int64]
) -> tuple[int, int]:
    """Where the span begins, up to the last slow update, that stands out most.

    Returns:
        Its first update, and how much it stands out.
    """
    gaps = np.flatnonzero(np.diff(slow) > _QUIET)
    start = int(slow[gaps[-1] + 1]) if len(gaps) else int(slow[0])
    last = int(slow[-1])
    score = np.cumsum(np.where(is_slow[start : last + 1][::-1], 1, -2))
    best = int(np.flatnonzero(score == score.max())[-1])
    return last - best, int(score[best])
