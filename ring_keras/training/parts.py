"""Data that are a rank's part, and what becomes of those who forget that."""

import functools
import warnings
import weakref
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.job.job import current_job, job_or_none
from ring_keras.keras_internals import calls
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.training.distributed_fit import DistributedFit

__all__ = ["is_part", "note_part"]


def note_part(data: Any) -> None:
    """These are one rank's part: a `fit` of an optimizer of its own is told."""
    parts = current_job().parts
    for one in tf.nest.flatten(data):
        parts[id(one)] = one
        if isinstance(one, tf.data.Dataset):
            _expect_its_own_order()
    _watch_fits()


def is_part(data: Any) -> bool:
    """Whether data are, or are made from, what `note_part` was given in this job."""
    job = job_or_none()
    if job is None:
        return False
    is_dataset = isinstance(data, tf.data.Dataset)
    sources = internals.upstream(data) if is_dataset else tf.nest.flatten(data)
    return any(job.parts.get(id(one)) is one for one in sources)


def _expect_its_own_order() -> None:
    """Keras says of `fit`'s default that it does not shuffle, as if nobody had."""
    warnings.filterwarnings(
        "ignore", "`shuffle=True` was passed, but will be ignored .* tf.data.Dataset"
    )


@functools.cache
def _watch_fits() -> None:
    """From now on, each `fit` of this process."""
    internals.call_before_callbacks("on_train_begin", _watch_fit)


def _watch_fit(callbacks: keras.callbacks.CallbackList) -> None:
    model = callbacks.model
    run = None if model is None else calls.calling_run(model)
    if run is None or not run.trains or run.callbacks is not callbacks:
        return
    has_one = any(isinstance(one, _LoneFit) for one in callbacks.callbacks)
    if is_part(run.data) and not has_one:
        warning = _LoneFit(callbacks)
        warning.set_params(callbacks.params)
        warning.set_model(model)
        callbacks.callbacks.append(warning)


class _LoneFit(keras.callbacks.Callback):
    """Warns where each rank would train a model of its own on its part of the data.

    Args:
        callbacks: The list that it is in, for this `fit` and those that take it again.
    """

    def __init__(self, callbacks: keras.callbacks.CallbackList) -> None:
        super().__init__()
        self._callbacks = weakref.ref(callbacks)
        self._is_first = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Another `fit` may have the same list."""
        self._is_first = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """All callbacks have begun, those that make optimizers distributed too."""
        is_first, self._is_first = self._is_first, False
        job = job_or_none()
        if not is_first or job is None or job.rank != 0:
            return
        # A step of one's own may have a tape that averages.
        steps_itself = type(self.model).train_step is not keras.Model.train_step
        callbacks = self._callbacks()
        if steps_itself or callbacks is None:
            return
        if DistributedFit.of(callbacks) is not None:
            return
        if not any(map(OptimizerHook.of, internals.optimizers_of(self.model))):
            logging.warning(
                "ring_keras: [RK651] "
                "the optimizer of model '%s' is not distributed, so each "
                "rank trains a model of its own, on its part of the data. Compile it "
                "with ring_keras.DistributedOptimizer(optimizer), or give fit() "
                "ring_keras.callbacks.Distributed().",
                self.model.name,
            )
