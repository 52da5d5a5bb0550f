"""Where callbacks of Keras write, and when."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ring_keras.keras_internals.names import (
    BATCHES_OF_TESTS,
    BATCHES_OF_TRAINING,
    GRAPH_IS_MISSING,
    IS_PROFILING,
    PROFILED_BATCHES,
    TRAIN_WRITER,
    WRITERS,
    WRITERS_BEFORE,
)
from ring_keras.keras_internals.private_names import private

__all__ = [
    "begin_silent_test_batch",
    "begin_silent_train_batch",
    "begin_writing",
    "is_silent_after_batch",
    "leave_writers",
    "postpone_writing",
    "set_batches_done",
    "train_writer",
]


_IS_POSTPONED = "_ring_keras_is_postponed"


def train_writer(callback: keras.callbacks.TensorBoard) -> Any:
    """Of `tf.summary`, for the run `train`.

    A second writer would make a second file in that folder, and TensorBoard reads on
    in the newest file alone.
    """
    return private(callback, TRAIN_WRITER)


def leave_writers(callback: keras.callbacks.TensorBoard) -> None:
    """Puts this thread's writer of before a `fit` back that raised.

    Keras does so in `on_train_end`, to which such a `fit` does not come: a later one
    would write its summaries to the failed one's file.
    """
    # Here, so that init() can say so where it is gone.
    from tensorflow.python.ops import summary_ops_v2

    pushed = private(callback, WRITERS_BEFORE)
    own = private(callback, WRITERS).values()
    while pushed and any(
        writer is summary_ops_v2._summary_state.writer for writer in own
    ):
        as_default, record_if = pushed.pop()
        record_if.__exit__(None, None, None)
        as_default.__exit__(None, None, None)


def postpone_writing(
    is_meant: Callable[[keras.callbacks.CallbackList, keras.Model], bool],
) -> None:
    """Has Keras's callback not write before a list of callbacks begins.

    Keras has it open a file, and write the model into it, as soon as a list is made: on
    every rank, before it can be known which is to write. For as long as the process
    lives.

    Args:
        is_meant: Says so of a list that is being made, and its model. Then
            `begin_writing` must follow.
    """
    replaced = keras.callbacks.TensorBoard.set_model

    @functools.wraps(replaced)
    def set_model(self: keras.callbacks.TensorBoard, model: keras.Model) -> None:
        caller = sys._getframe(1).f_locals.get("self")
        is_listed = isinstance(caller, keras.callbacks.CallbackList)
        is_plain = type(self) is keras.callbacks.TensorBoard
        postponed = is_plain and is_listed and is_meant(caller, model)
        vars(self)[_IS_POSTPONED] = postponed
        if postponed:
            keras.callbacks.Callback.set_model(self, model)
        else:
            replaced(self, model)

    keras.callbacks.TensorBoard.set_model = set_model


def begin_writing(callback: keras.callbacks.Callback) -> None:
    """What was postponed, if anything was, for a callback that is to write."""
    if vars(callback).get(_IS_POSTPONED):
        callback.set_model(callback.model)


def set_batches_done(callback: keras.callbacks.TensorBoard, count: int) -> None:
    """Has it go on as if it had written batches of training from the first one on."""
    setattr(callback, BATCHES_OF_TRAINING, count)


def begin_silent_train_batch(callback: keras.callbacks.TensorBoard) -> bool:
    """Does what Keras's callback would do for a batch of which nothing is written.

    Keras's own method puts its writer in place anew, and flushes the file, before each
    batch, though it writes only every `update_freq` of them. What a program finds that
    writes summaries of its own is the same here: the batch as their step, and that
    none is recorded.

    Returns:
        Whether it is such a batch; else Keras's own method is to be called.
    """
    number = private(callback, BATCHES_OF_TRAINING) + 1
    if _is_profiled(callback, number):
        return False
    return _begin_silently(callback, BATCHES_OF_TRAINING)


def begin_silent_test_batch(callback: keras.callbacks.TensorBoard) -> bool:
    """The same for a batch of an evaluation."""
    return _begin_silently(callback, BATCHES_OF_TESTS)


def is_silent_after_batch(callback: keras.callbacks.TensorBoard) -> bool:
    """Whether Keras's callback would write nothing at the end of a batch of training.

    It makes an op or two of each value of the logs before it sees that.
    """
    number = private(callback, BATCHES_OF_TRAINING)
    if private(callback, GRAPH_IS_MISSING) or _is_profiled(callback, number):
        return False
    if callback.update_freq == "epoch":
        # Nothing goes to its own writer; the program may have set another one.
        return not tf.summary.should_record_summaries()
    return bool(number % callback.update_freq)


def _begin_silently(callback: keras.callbacks.TensorBoard, count: str) -> bool:
    number = private(callback, count) + 1
    every = callback.update_freq
    # After one that was recorded, Keras's method says that this one is not.
    if every == "epoch" or number % every == 0 or (number - 1) % every == 0:
        return False
    setattr(callback, count, number)
    tf.summary.experimental.set_step(number)
    return True


def _is_profiled(callback: keras.callbacks.TensorBoard, number: int) -> bool:
    first, last = (private(callback, name) for name in PROFILED_BATCHES)
    return bool(first <= number <= last or private(callback, IS_PROFILING))
