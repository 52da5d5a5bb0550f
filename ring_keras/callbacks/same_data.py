"""Finds out whether all ranks train on the same data, which is hardly ever meant."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.data_order import order_on

__all__ = ["array_digest", "compare_first_batches", "may_be_same", "warn_of_same_data"]

# So many rows stand for an array.
_ROWS = 64


def array_digest(data: Any) -> str | None:
    """Of arrays, or a structure of them: what their rows are like.

    None if `data` are something else, or all rows are equal, as made-up ones may be.
    """
    arrays = tf.nest.flatten(data)
    if not all(isinstance(one, np.ndarray) or tf.is_tensor(one) for one in arrays):
        return None
    digest = hashlib.sha256()
    differ = False
    for array in arrays:
        if not array.shape or not array.shape[0] or array.dtype in (object, tf.string):
            return None
        places = np.linspace(0, array.shape[0] - 1, min(array.shape[0], _ROWS))
        rows = np.stack([np.asarray(array[int(place)]) for place in places])
        differ = differ or bool((rows != rows[:1]).any())
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(rows.tobytes())
    return digest.hexdigest() if differ else None


def may_be_same(data: Any) -> bool:
    """Whether only the batches will tell: of what nobody has divided."""
    if isinstance(data, tf.data.Dataset):
        return not any(map(order_on, internals.upstream(data)))
    return callable(getattr(data, "__iter__", None)) and not array_digest(data)


def compare_first_batches(process_set: ProcessSet) -> Callable[[], None]:
    """Has the first batch noted.

    Returns:
        To be called when that has been trained on; collective.
    """
    _native.await_first_batch()

    def compare() -> None:
        ours = np.array([_native.first_batch()], np.uint64).view(np.int64)
        everyones = _native.allgather(
            ours, "fit/first_batch", process_set.communicator_id()
        )
        if everyones[0] and (everyones == everyones[0]).all():
            warn_of_same_data("the first batches of all ranks are", process_set)

    return compare


def warn_of_same_data(what_is: str, process_set: ProcessSet) -> None:
    """Says so on the first rank."""
    if process_set.rank() == 0:
        logging.warning(
            "ring_keras: [RK503] "
            "%s the same, so each epoch trains on every example %d times. "
            "Give every rank its part: ring_keras.data.shard(data).",
            what_is,
            process_set.size(),
        )
