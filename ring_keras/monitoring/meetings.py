"""TensorBoard's scalars of the meetings of ranks that train apart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Apart", "Meeting", "scalars_of_apart"]


@dataclasses.dataclass(frozen=True)
class Meeting:
    """One, as one rank saw it; of all weights, or of a fragment.

    Attributes:
        bytes: That each rank, or host, has sent for it.
        amount: How much this rank counted in it.
        change_square: The squared norm of what its weights had changed by; None where
            the ranks' average is not known, but its largest values.
        average_square: That of the average.
        update_norm: The norm of what the outer optimizer has added to the weights.
    """

    bytes: float
    amount: float
    change_square: float | None
    average_square: float
    update_norm: float


@dataclasses.dataclass(frozen=True)
class Apart:
    """What one rank knows of the meetings of one optimizer.

    Attributes:
        meetings: Those since it was asked before; as many on all ranks.
        updates_left: Until the next one; None where nobody asks.
    """

    meetings: tuple[Meeting, ...]
    updates_left: int | None = None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Apart:
        """What `to_json` gave."""
        meetings = (Meeting(*one) for one in content["meetings"])
        return cls(tuple(meetings), content["updates_left"])

    def to_json(self) -> dict[str, Any]:
        """Plain values, all of their digits: what differs little is subtracted."""
        return {
            "meetings": [dataclasses.astuple(one) for one in self.meetings],
            "updates_left": self.updates_left,
        }


def scalars_of_apart(by_rank: Sequence[Sequence[Apart]]) -> dict[str, float]:
    """By their tags: means over the meetings.

    Args:
        by_rank: Of each rank, of each optimizer; as many on all ranks.
    """
    scalars: dict[str, float] = {}
    of_optimizers = list(zip(*by_rank, strict=True))
    for number, of_ranks in enumerate(of_optimizers):
        suffix = f"/optimizer_{number}" if len(of_optimizers) > 1 else ""
        for tag, value in _of_optimizer(of_ranks).items():
            scalars[f"ring/{tag}{suffix}"] = value
    return scalars


def _of_optimizer(of_ranks: Sequence[Apart]) -> dict[str, float]:
    scalars: dict[str, float] = {}
    left = of_ranks[0].updates_left
    if left is not None:
        scalars["updates_to_meeting"] = left
    # The same of all ranks, but for what each has changed.
    own = of_ranks[0].meetings
    if not own:
        return scalars
    scalars["meeting_bytes"] = sum(one.bytes for one in own) / len(own)
    scalars["meeting_update_norm"] = sum(one.update_norm for one in own) / len(own)
    meetings = zip(*(one.meetings for one in of_ranks), strict=True)
    drift = _drift(list(meetings))
    if drift is not None:
        scalars["meeting_drift"] = drift
    return scalars


def _drift(meetings: Sequence[Sequence[Meeting]]) -> float | None:
    """How far the ranks were from their average, as a part of how far that had gone.

    The root of the mean over ranks of |change - average|^2, divided by |average|, where
    each rank counts as in the average itself. Of several meetings squares are added up
    first, as if their weights were one model's.
    """
    spread = length = 0.0
    for of_ranks in meetings:
        total = sum(one.amount for one in of_ranks)
        if total == 0:
            continue  # Nobody has trained.
        squares = 0.0
        for one in of_ranks:
            if one.change_square is None:
                return None
            squares += one.amount / total * one.change_square
        average = of_ranks[0].average_square
        # The mean of squares is the square of the mean and the spread.
        spread += squares - average
        length += average
    if length == 0:
        return None
    # What is left of equal changes is rounding, of either sign.
    return math.nan if math.isnan(spread) else math.sqrt(max(spread, 0.0) / length)
