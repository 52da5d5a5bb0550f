"""Keras's lists of callbacks, which `fit` and its like go through."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import keras

__all__ = ["call_before_callbacks", "leave_out_batch_end", "remove_progress_bar"]


def call_before_callbacks(
    hook: Literal["on_train_begin", "on_test_begin", "on_predict_begin"],
    task: Callable[[keras.callbacks.CallbackList], None],
) -> None:
    """Has a task called with every list whose callbacks are about to be called.

    For as long as the process lives. What the task puts into the list is called, too.
    """
    replaced: Callable[..., Any] = getattr(keras.callbacks.CallbackList, hook)

    @functools.wraps(replaced)
    def called(self: keras.callbacks.CallbackList, logs: Any = None) -> Any:
        task(self)
        return replaced(self, logs)

    setattr(keras.callbacks.CallbackList, hook, called)


def remove_progress_bar(callbacks: keras.callbacks.CallbackList) -> None:
    """As with `verbose=0`."""
    callbacks.callbacks[:] = [
        callback
        for callback in callbacks.callbacks
        if not isinstance(callback, keras.callbacks.ProgbarLogger)
    ]


def leave_out_batch_end(callbacks: keras.callbacks.CallbackList) -> None:
    """The batch whose end `fit` is about to tell them was none: nobody hears of it."""

    def pass_over(batch: int, logs: Any = None) -> None:
        del vars(callbacks)["on_train_batch_end"]

    vars(callbacks)["on_train_batch_end"] = pass_over
