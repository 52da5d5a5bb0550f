"""A model's train function, with the ring's errors and what callbacks need."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import translated
from ring_keras.job.topology import size
from ring_keras.keras_internals import calls
from ring_keras.keras_internals.graphs import trace_train_function
from ring_keras.optimizers.pass_accumulator import PassesSeen, passes_watched
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.own_pace import refuse_without_fit
from ring_keras.training.step_thread import (
    may_leave_main_thread,
    run_beside_main_thread,
)
from ring_keras.training.timed_iterator import timed_iterator
from ring_keras.training.train_step import (
    DistributedTrainStep,
    failures_noted,
    is_for_xla,
)
from ring_keras.training.uneven_batches import may_have_padding, without_padding
from ring_keras.training.unpadded_iterator import UnpaddedIterator

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
        self._traced: tuple[Any, ...] | None = None
        # Whether it was traced by a `fit` that takes batches at a pace of its own.
        self._is_paced = False
        # What was traced by now.
        self._passes = PassesSeen()
        self.before_next_call: Callable[[Any], None] | None = None
        """Called once, with the iterator of the next call, before that runs."""

    def retrace(self) -> None:
        """Has Keras make another one, which is traced anew."""
        internals.set_train_function(self._model, None)
        step = DistributedTrainStep.of(self._model)
        if step is not None:
            step.forget_traces()
        self._function = internals.train_function(self._model)
        self._passes = PassesSeen()
        internals.set_train_function(self._model, self)

    @translated()
    def __call__(self, iterator: Any) -> Any:
        """Runs one execution; raises ring_keras's errors by their own class."""
        run = calls.calling_run(self._model)
        fit = None if run is None else DistributedFit.of(run.callbacks)
        step = DistributedTrainStep.of(self._model)
        if step is not None and step.drop_other_fits(fit or _fit_around(run)):
            self.retrace()
        elif (size() == 1 or run is None) and step is not None and step.outdated():
            self.retrace()  # There is nobody else, or all are in loops of their own.
        if run is None or fit is None:
            if self._is_paced:
                refuse_without_fit(self._model)
            self._prepare(iterator)
            return self._run(iterator)
        callbacks = run.callbacks
        return fit.sections.execute(
            lambda data: self._execute(fit, callbacks, data), iterator
        )

    def _execute(
        self,
        fit: DistributedFit,
        callbacks: keras.callbacks.CallbackList,
        iterator: Any,
    ) -> Any:
        """An execution of that `fit`; may begin anew if it has failed."""
        if not fit.executions.are_asked:
            iterator = fit.executions.next(iterator)
            if iterator is None:
                internals.leave_out_batch_end(callbacks)
                return self._last_result
        pace = fit.pace
        lost_by = _loses_passes(callbacks)
        with contextlib.nullcontext() if pace is None else pace.watched():
            self._prepare(iterator)
            if fit.is_done_already():
                for _ in range(fit.executions.steps or self._model.steps_per_execution):
                    next(iterator)
                return {}
            if pace is None:
                self._last_result = self._run(iterator, lost_by)
            else:
                self._is_paced = True
                self._last_result = pace.execute(lambda: self._run(iterator, lost_by))
        fit.execution_is_done()
        return self._last_result

    def _prepare(self, iterator: Any) -> None:
        task, self.before_next_call = self.before_next_call, None
        if task is not None:
            task(iterator)

    def _run(self, iterator: Any, lost_by: str = "") -> Any:
        with failures_noted(self._model), passes_watched(self._passes, lost_by):
            return self._call(iterator)

    def _call(self, iterator: Any) -> Any:
        for_xla = is_for_xla(self._model)
        spec, iterator = _inspected(iterator, for_xla)
        iterator = timed_iterator(iterator, UnpaddedIterator if for_xla else None)
        traced = (self._function, type(iterator), spec)
        if size() == 1 or not may_leave_main_thread(self._model):
            return self._function(iterator)
        if traced != self._traced:
            if not trace_train_function(self._function, iterator):
                result = self._function(iterator)
                self._traced = traced
                return result
            self._traced = traced
        return run_beside_main_thread(self._function, iterator)


def _loses_passes(callbacks: keras.callbacks.CallbackList) -> str:
    """The first of them that goes on without what tapes add up; where it is in ours."""
    for callback in callbacks.callbacks:
        loses = getattr(callback, "loses_passes", None)
        if loses is not None and loses(callbacks.callbacks):
            kinds = type(callback).__mro__  # It may be a class of the user's.
            ours = next(k for k in kinds if k.__module__.startswith("ring_keras."))
            return f"{ours.__module__.split('.')[1]}.{ours.__name__}"
    return ""


def _fit_around(run: calls.Run | None) -> DistributedFit | None:
    """That one of whose callbacks trains on a batch by itself."""
    callbacks = None if run is not None else calls.calling_callback_list()
    return None if callbacks is None else DistributedFit.of(callbacks)


def _inspected(iterator: Any, for_xla: bool) -> tuple[Any, Any]:
    """What TensorFlow traces a step for, and an iterator over the same batches."""
    spec = getattr(iterator, "element_spec", None)
    if spec is not None:
        return spec, iterator
    # Of train_on_batch, whose batch may have a shape for which it traces again.
    batch = next(iterator)
    if for_xla and may_have_padding(batch):
        batch = without_padding(batch)
    leaves = [
        (str(leaf.shape), str(leaf.dtype)) if hasattr(leaf, "shape") else repr(leaf)
        for leaf in tf.nest.flatten(batch)
    ]
    return leaves, itertools.chain([batch], iterator)
