"""Scripts of several ranks that use Keras as one process would: they are told."""

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.job.job import Job, job_or_none
from ring_keras.job.process_set import has_process_sets
from ring_keras.keras_internals import calls
from ring_keras.optimizers.hooking import shards_state
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.parts_of_one_state import is_divided
from ring_keras.optimizers.sharded_files import failed_save_told
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.distributed_models import is_local_in, process_set_of
from ring_keras.training.failures import failures_told
from ring_keras.training.lone_updates import is_told_of_lone_training
from ring_keras.training.parts import is_part
from ring_keras.training.told_errors import note_told
from ring_keras.training.whole_save import Together, is_told_of_files, whole_save

__all__ = ["watch"]

_LEARNING_LAYERS = (
    keras.layers.Discretization,
    keras.layers.IntegerLookup,
    keras.layers.Normalization,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


@functools.cache
def watch() -> None:
    """From now on: `fit`, `evaluate` and `adapt`, and models that are saved."""
    internals.call_before_callbacks("on_train_begin", _watch_fit)
    for name in ("save", "save_weights"):
        method = getattr(keras.Model, name)
        setattr(keras.Model, name, whole_save(method, is_local_in, _saved_together))
    for name in ("fit", "evaluate"):
        setattr(keras.Model, name, failures_told(getattr(keras.Model, name)))
    for layer in _LEARNING_LAYERS:
        layer.adapt = _told_of_parts(layer.adapt)


def _saved_together(model: keras.Model, filepath: Any) -> Together | None:
    """Where the ranks divide an optimizer's state."""
    if not shards_state(model):
        return None
    text = str(filepath)
    if text.endswith((".h5", ".hdf5")) and not text.endswith(".weights.h5"):
        raise ValueError(
            "[RK336] "
            "a file of the old HDF5 format cannot hold the state of an optimizer "
            "with shard_state=True, for now. Save to a path that ends in '.keras'. "
            f"Received: filepath={text!r}"
        )
    if not is_divided(internals.optimizers_of(model)):
        return contextlib.nullcontext()
    return failed_save_told(process_set_of(model), note_told)


def _told_of_parts(adapt: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's method that learns from data, which should not be a rank's part."""

    @functools.wraps(adapt)
    def told(self: keras.layers.Layer, data: Any, *args: Any, **kwargs: Any) -> Any:
        job = job_or_none()
        if job is not None and job.size > 1 and job.rank == 0 and is_part(data):
            logging.warning(
                "ring_keras: [RK654] "
                "layer '%s' learns from this rank's part of the data by adapt(), so "
                "each rank's computes something else. Call adapt() with all of the "
                "data, before ring_keras.data.shard().",
                self.name,
            )
        return adapt(self, data, *args, **kwargs)

    return told


def _watch_fit(callbacks: keras.callbacks.CallbackList) -> None:
    model = callbacks.model
    run = None if model is None else calls.calling_run(model)
    if run is None or not run.trains or run.callbacks is not callbacks:
        return
    job = job_or_none()
    if job is None or job.size == 1:
        return
    has_one = any(isinstance(one, _LoneFit) for one in callbacks.callbacks)
    is_divided = is_part(run.data)
    if (is_divided or not _is_used(job)) and not has_one:
        warning = _LoneFit(callbacks, is_divided)
        warning.set_params(callbacks.params)
        warning.set_model(model)
        callbacks.callbacks.append(warning)


def _is_used(job: Job) -> bool:
    """Whether ranks may do different things, or have asked each other something."""
    return job.is_used or has_process_sets(job)


class _LoneFit(keras.callbacks.Callback):
    """Warns where each rank would train a model of its own, and hardly means to.

    Args:
        callbacks: The list that it is in, for this `fit` and those that take it again.
        is_divided: Whether the data are a rank's part, or the program has joined the
            job and done nothing more.
    """

    def __init__(
        self, callbacks: keras.callbacks.CallbackList, is_divided: bool
    ) -> None:
        super().__init__()
        self._is_divided = is_divided
        self._callbacks = weakref.ref(callbacks)
        self._is_first = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Another `fit` may have the same list."""
        self._is_first = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """All callbacks have begun, those that make optimizers distributed too."""
        is_first, self._is_first = self._is_first, False
        job = job_or_none()
        if not is_first or job is None:
            return
        # A step of one's own may have a tape that averages.
        steps_itself = type(self.model).train_step is not keras.Model.train_step
        callbacks = self._callbacks()
        if steps_itself or callbacks is None:
            return
        if DistributedFit.of(callbacks) is not None:
            return
        if any(map(OptimizerHook.of, internals.optimizers_of(self.model))):
            return
        if not self._is_divided and _is_used(job):
            return
        saves = ""
        savers = keras.callbacks.ModelCheckpoint
        if any(isinstance(one, savers) for one in callbacks.callbacks):
            saves = ", and saves it by its ModelCheckpoint"
            is_told_of_files.put(job, True)  # What that comes to is not said besides.
        if job.rank != 0:
            return
        is_told_of_lone_training.put(job, True)
        if self._is_divided:
            logging.warning(
                "ring_keras: [RK651] "
                "the optimizer of model '%s' is not distributed, so each "
                "rank trains a model of its own, on its part of the data%s. Compile it "
                "with ring_keras.DistributedOptimizer(optimizer), or give fit() "
                "ring_keras.callbacks.Distributed().",
                self.model.name,
                saves,
            )
        else:
            job.is_used = True  # Said once.
            logging.warning(
                "ring_keras: [RK652] "
                "each of the %d ranks trains model '%s' alone, on all of the data%s: "
                "the script calls ring_keras.init(), and nothing else of ring_keras. "
                "Divide the data with ring_keras.data.shard(), and give fit() "
                "ring_keras.callbacks.Distributed().",
                job.size,
                self.model.name,
                saves,
            )
