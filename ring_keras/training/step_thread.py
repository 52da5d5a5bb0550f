"""Runs training steps so that Python's signal handlers run meanwhile.

TensorFlow keeps the thread that calls it until the step is done, and in a step a
rank waits for its peers. Python runs signal handlers in the main thread only, so
that thread waits here, in Python, while another one calls TensorFlow.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ring_keras import _native
from ring_keras.keras_internals.graphs import runs_on_chosen_device

__all__ = ["call_beside", "may_leave_main_thread", "run_beside_main_thread"]

# What a step may take to end by itself once a handler has raised. Then its
# collectives fail.
_STEP_END_S = 0.1


def may_leave_main_thread(model: keras.Model) -> bool:
    """Whether a step that has been traced may be called in another thread.

    TensorFlow keeps strategies and scopes of `tf.device` by thread, and a model that
    runs eagerly calls the user's code.
    """
    return (
        threading.current_thread() is threading.main_thread()
        and not model.run_eagerly
        and not tf.config.functions_run_eagerly()
        and not tf.distribute.has_strategy()
        and not runs_on_chosen_device()
    )


def run_beside_main_thread(function: Callable[[Any], Any], argument: Any) -> Any:
    """`function(argument)`, interrupted by what a signal handler raises.

    The collectives of an interrupted step fail, on all ranks.
    """
    global _thread
    if _thread is None or not _thread.is_alive():  # A fork leaves it behind.
        _thread = _StepThread()
    return _thread.run(function, argument)


def call_beside(
    model: keras.Model, function: Callable[[Any], Any], argument: Any
) -> Any:
    """The same if that may be, of what is done for the model's steps."""
    if may_leave_main_thread(model):
        return run_beside_main_thread(function, argument)
    return function(argument)


class _Call:
    def __init__(self, function: Callable[[Any], Any], argument: Any) -> None:
        self.function = function
        self.argument = argument
        self.result: Any = None
        self.error: BaseException | None = None
        self.pending = threading.Lock()
        self.pending.acquire()


class _StepThread:
    """The thread of this process that calls TensorFlow for the main thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        # A daemon: a step that a second Ctrl-C gave up must not hold the process.
        self._thread = threading.Thread(
            target=self._serve, name="ring_keras step", daemon=True
        )
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, function: Callable[[Any], Any], argument: Any) -> Any:
        call = _Call(function, argument)
        try:
            self._calls.put(call)
            call.pending.acquire()
        except BaseException:
            self._end_calls()
            raise
        if call.error is None:
            return call.result
        try:
            raise call.error
        finally:
            del call  # Its error refers to this frame.

    def _end_calls(self) -> None:
        """Waits until all that was asked of the thread is over, or fails it."""
        # The handler may have raised before the call was in the queue, or when it
        # was over already: a call behind it tells in every case.
        last = _Call(lambda _: None, None)
        self._calls.put(last)
        while not last.pending.acquire(timeout=_STEP_END_S):
            _native.interrupt()

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            try:
                call.result = call.function(call.argument)
            except BaseException as error:
                call.error = error
            call.pending.release()
            del call  # The next may be long in coming.


# The process's, whatever job it is in: between two calls it holds nothing.
_thread: _StepThread | None = None
