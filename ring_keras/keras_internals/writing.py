"""Where callbacks of Keras write."""

from typing import Any

import keras

from ring_keras.keras_internals.names import TRAIN_WRITER

__all__ = ["train_writer"]


def train_writer(callback: keras.callbacks.TensorBoard) -> Any:
    """Of `tf.summary`, for the run `train`.

    A second writer would make a second file in that folder, and TensorBoard reads on
    in the newest file alone.
    """
    return getattr(callback, TRAIN_WRITER)
