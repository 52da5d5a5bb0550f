"""What Keras iterates over the steps of an epoch with."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ring_keras.keras_internals.names import (
    EPOCH_BATCH_COUNT,
    EPOCH_DATASET,
    EPOCH_STEPS,
)
from ring_keras.keras_internals.private_names import private

__all__ = ["dataset_of", "has_steps", "set_dataset", "set_steps"]


def dataset_of(epoch_iterator: Any) -> Any:
    """The dataset from which each epoch makes an iterator; None if there is none."""
    return None if epoch_iterator is None else private(epoch_iterator, EPOCH_DATASET)


def set_dataset(epoch_iterator: Any, dataset: tf.data.Dataset) -> None:
    """Replaces it, before an epoch, by one with a known number of batches."""
    for name in (EPOCH_DATASET, EPOCH_BATCH_COUNT):
        private(epoch_iterator, name)  # Else nobody would read them.
    setattr(epoch_iterator, EPOCH_DATASET, dataset)
    setattr(epoch_iterator, EPOCH_BATCH_COUNT, int(dataset.cardinality()))


def has_steps(epoch_iterator: Any) -> bool:
    """Whether `set_steps` has anything to replace in this release of Keras."""
    return hasattr(epoch_iterator, EPOCH_STEPS)


def set_steps(
    epoch_iterator: Any, steps: Callable[[], Iterator[tuple[int, int, Any]]]
) -> None:
    """Has `fit` go through these steps in each epoch.

    Args:
        epoch_iterator: That of the call.
        steps: Yields for each execution its first step, its last one, and the
            iterator that has its batches.
    """
    vars(epoch_iterator)[EPOCH_STEPS] = steps
