"""Where training was when it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

__all__ = ["SavedPlace"]

_NONE = -1


@dataclass(frozen=True)
class SavedPlace:
    """A step of an epoch, which says how much of its data is done only among as many.

    Attributes:
        epoch: The first is 0.
        step: How many steps of it were done; 0 if it had not begun.
        steps_per_epoch: How many it had with the ranks that there were. None if nobody
            knows, or if there were others when it began.
        size: How many ranks there were.
    """

    epoch: int
    step: int
    steps_per_epoch: int | None
    size: int

    @classmethod
    def of_record(cls, record: Mapping[str, Any], size: int) -> SavedPlace | None:
        """That of a checkpoint of so many ranks; within an epoch that was cut short.

        None if it was made before they said so.
        """
        if "cut_at" not in record:
            return None
        epoch, step = record["epoch"], record["step_in_epoch"]
        if record["cut_at"] is not None:
            epoch, step = epoch - 1, record["cut_at"]
        return cls(epoch, step, record["steps_per_epoch"], size)

    def message(self) -> np.ndarray[Any, Any]:
        """For another rank: four numbers, int64."""
        numbers = [_NONE if value is None else value for value in astuple(self)]
        return np.array(numbers, np.int64)

    @classmethod
    def of_message(cls, message: np.ndarray[Any, Any]) -> SavedPlace:
        """That of a rank with this message."""
        epoch, step, steps, size = map(int, message)
        return cls(epoch, step, None if steps == _NONE else steps, size)
