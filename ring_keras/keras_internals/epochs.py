"""The data that Keras makes the batches of an epoch from."""

from typing import Any

import tensorflow as tf

from ring_keras.keras_internals.names import (
    EPOCH_BATCH_COUNT,
    EPOCH_DATASET,
    EPOCH_PASS,
)
from ring_keras.keras_internals.private_names import private

__all__ = ["begin_another_pass", "dataset_of", "pass_under_way", "set_dataset"]


def dataset_of(epoch_iterator: Any) -> Any:
    """The dataset from which each epoch makes an iterator; None if there is none."""
    return None if epoch_iterator is None else private(epoch_iterator, EPOCH_DATASET)


def set_dataset(epoch_iterator: Any, dataset: tf.data.Dataset) -> None:
    """Replaces it, before an epoch, by one with a known number of batches."""
    for name in (EPOCH_DATASET, EPOCH_BATCH_COUNT):
        private(epoch_iterator, name)  # Else nobody would read them.
    setattr(epoch_iterator, EPOCH_DATASET, dataset)
    setattr(epoch_iterator, EPOCH_BATCH_COUNT, int(dataset.cardinality()))


def pass_under_way(epoch_iterator: Any) -> Any:
    """The iterator with which the next epoch goes on; None if it makes another."""
    return private(epoch_iterator, EPOCH_PASS)


def begin_another_pass(epoch_iterator: Any) -> None:
    """Has the next epoch make an iterator of its own, where Keras keeps that of all."""
    private(epoch_iterator, EPOCH_PASS)  # Else nobody would read it.
    setattr(epoch_iterator, EPOCH_PASS, None)
