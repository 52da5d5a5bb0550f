"""The data of a training loop of one's own, timed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ring_keras import _native

__all__ = ["timed"]

Batch = TypeVar("Batch")


def timed(data: Iterable[Batch]) -> Iterator[Batch]:
    """Yields the same batches, and times them for `ring.stats()`.

    The time that the loop waits for batches is `input_s`, and the length of a batch's
    first array is `examples`.

    A `fit` with a callback of `ring_keras.callbacks` does not need this function.

    Examples:
        >>> dataset = tf.data.Dataset.from_tensor_slices(x).batch(8)
        >>> for batch in ring.monitoring.timed(dataset):
        ...     total = ring.allreduce(tf.reduce_sum(batch), op=ring.Sum)

    Args:
        data: The batches of the loop.

    Yields:
        The same batches.
    """
    batches = iter(data)
    while True:
        since = _native.ticks()
        try:
            batch = next(batches)
        except StopIteration:
            return
        _native.add_input(since, _native.ticks(), _length(batch))
        yield batch


def _length(batch: Any) -> int:
    """Of the first array that has one; 0 if none has."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((length for length in map(_length, batch) if length), 0)
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) > 0 else 0
