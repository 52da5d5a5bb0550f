"""The data of a training loop of one's own, timed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from ring_keras import _native

__all__ = ["timed"]

Batch = TypeVar("Batch")


def timed(data: Iterable[Batch]) -> Iterator[Batch]:
    """The same batches; what the loop waits for them is `input_s` of `ring.stats()`.

    A `fit` with a callback of `ring_keras.callbacks` needs no such thing.

        for x, y in ring_keras.monitoring.timed(dataset):
            train_step(x, y)

    Args:
        data: What the loop goes through.
    """
    batches = iter(data)
    while True:
        since = _native.ticks()
        try:
            batch = next(batches)
        except StopIteration:
            return
        _native.add_input(since, _native.ticks())
        yield batch
