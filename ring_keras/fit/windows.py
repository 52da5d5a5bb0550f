"""The parts of a model that meet in turn, and where in a window each does."""

import heapq
import math
from collections.abc import Sequence
from typing import Any

__all__ = ["fragments_of", "places_of"]


def fragments_of(variables: Sequence[Any], count: int) -> list[list[int]]:
    """Divides positions of variables, so that all parts have about as many weights."""
    sizes = [math.prod(variable.shape) for variable in variables]
    fragments: list[list[int]] = [[] for _ in range(count)]
    totals = [(0, 0, number) for number in range(count)]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        # Of parts of one size, that with the fewest: so none stays empty.
        total, length, number = heapq.heappop(totals)
        fragments[number].append(index)
        heapq.heappush(totals, (total + sizes[index], length + 1, number))
    return [sorted(fragment) for fragment in fragments]


def places_of(fragments: int, updates: int, batches: int, later: int) -> list[int]:
    """Of each fragment: where in a window it meets, as batches, modulo a window.

    Args:
        fragments: How many there are.
        updates: From one meeting to the next.
        batches: The same.
        later: Updates after a meeting.
    """
    per_update = batches // updates
    ends = [-(-(n + 1) * updates // fragments) + later for n in range(fragments)]
    return [end * per_update % batches for end in ends]
