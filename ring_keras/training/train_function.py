"""A model's train function, with the ring's errors and what callbacks need."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ring_keras.errors import translated
from ring_keras.job.topology import size
from ring_keras.keras_internals import calls
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.end_of_data import EndOfData
from ring_keras.training.step_thread import (
    may_leave_main_thread,
    run_beside_main_thread,
)

__all__ = ["TrainFunction"]


class TrainFunction:
    """Wraps what Keras calls once per execution of one or more steps.

    Args:
        model: The model.
        function: The one that Keras made.
    """

    def __init__(self, model: keras.Model, function: Callable[[Any], Any]) -> None:
        self._model = model
        self._function = function
        self._last_result: Any = {}
        # The function and the kind of data that were called in the main thread,
        # in which TensorFlow traces.
        self._traced: tuple[Callable[[Any], Any], Any] | None = None
        self.before_next_call: Callable[[Any], None] | None = None
        """Called once, with the iterator of the next call, before that runs."""
        self.end_of_data: EndOfData | None = None
        """Told of the end of an epoch that no rank knows beforehand."""
        self._done_calls = 0
        self._steps_per_call = 1

    def wrap(self, function: Callable[[Any], Any]) -> None:
        """Goes on with another one that Keras made."""
        self._function = function

    def skip(self, calls: int, steps_per_call: int) -> None:
        """Makes the next calls only read their batches: their steps are done."""
        self._done_calls = calls
        self._steps_per_call = steps_per_call

    @translated()
    def __call__(self, iterator: Any) -> Any:
        """Runs one execution; raises ring_keras's errors by their own class.

        If a rank has stopped before it, it runs on none, and `fit` ends.
        """
        run = calls.calling_run(self._model)
        fit = None if run is None else DistributedFit.of(run.callbacks)
        if fit is not None and not fit.goes_on():
            return self._last_result
        task, self.before_next_call = self.before_next_call, None
        if task is not None:
            task(iterator)
        if self._done_calls:
            self._done_calls -= 1
            for _ in range(self._steps_per_call):
                next(iterator)
            return {}
        self._last_result = self._run(iterator)
        return self._last_result

    def _run(self, iterator: Any) -> Any:
        if self.end_of_data is None:
            return self._call(iterator)
        try:
            return self._call(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            self.end_of_data.out_of_data()
            raise
        except tf.errors.InvalidArgumentError as error:
            self.end_of_data.explain(error)
            raise

    def _call(self, iterator: Any) -> Any:
        traced = (self._function, getattr(iterator, "element_spec", None))
        if traced == self._traced and size() > 1 and may_leave_main_thread(self._model):
            return run_beside_main_thread(self._function, iterator)
        result = self._function(iterator)
        self._traced = traced
        return result
