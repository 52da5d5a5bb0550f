"""The batches of a rank whose data may end before another one's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ring_keras.training.epoch_agreement import EpochAgreement

__all__ = ["JoinedBatches", "StandIn"]

_END = object()


@dataclasses.dataclass(frozen=True)
class StandIn:
    """What a rank without data takes a step on, which counts for nothing.

    Attributes:
        batch: Its last one, so that any step can be taken on it. None if it has had
            none yet.
    """

    batch: Any


class JoinedBatches:
    """Those of joined data: of a rank without, a `StandIn` until all have ended.

    Args:
        agreement: By which the ranks ask each other for steps.
    """

    def __init__(self, agreement: EpochAgreement) -> None:
        self._agreement = agreement
        self._last: Any = None

    def take(self, batches: Iterator[Any]) -> Any:
        """That of the next step; None if no rank has one. A collective."""
        batch = next(batches, _END)
        has_one = batch is not _END
        if has_one:
            self._last = batch
        if not self._agreement.anyone_goes_on(has_one):
            return None
        return batch if has_one else StandIn(self._last)
