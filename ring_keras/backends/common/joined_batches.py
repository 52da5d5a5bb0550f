"""The batches of a rank whose data may end before another one's."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from ring_keras.config import keras_backend
from ring_keras.training.epoch_agreement import EpochAgreement
from ring_keras.values.own_collectives import own_collectives_refused

__all__ = ["JoinedBatches", "StandIn", "in_joined_step"]

_END = object()


@dataclasses.dataclass(frozen=True)
class StandIn:
    """What a rank without data takes a step on, which counts for nothing.

    Attributes:
        batch: Its last one, so that any step can be taken on it. None if it has had
            none yet.
    """

    batch: Any


def in_joined_step() -> contextlib.AbstractContextManager[None]:
    """In it the model computes; other ranks may have no batch for that."""
    return own_collectives_refused(
        "a step on data of ring_keras.data.join(), in which a rank whose data have "
        "ended would take part with old ones, or not at all. With Keras's back end "
        f"{keras_backend().name} give all ranks as many batches, as "
        "ring_keras.data.shard() does."
    )


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
