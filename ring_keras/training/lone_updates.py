"""Updates by gradients that nobody has averaged: each rank would train by itself.

`fit` of a model whose `train_step` is Keras's own is told before (`lone_scripts.py`).
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from absl import logging

from ring_keras.job.job import Job, PerJob, current_job, job_or_none
from ring_keras.keras_internals import calls
from ring_keras.ops.request_names import has_combined
from ring_keras.optimizers.optimizer_hook import OptimizerHook

__all__ = ["expect_averages", "is_told_of_lone_training"]

is_told_of_lone_training: PerJob[bool] = PerJob(bool)
"""Whether the program has been told that each rank trains by itself."""

_are_expected: PerJob[bool] = PerJob(bool)


def expect_averages() -> None:
    """Data are divided: the next update of an optimizer is looked at."""
    _watch_updates()
    _are_expected.put(current_job(), True)


@functools.cache
def _watch_updates() -> None:
    """For as long as the process lives, as others may put theirs around it."""
    original: Callable[..., Any] = keras.optimizers.Optimizer.apply

    @functools.wraps(original)
    def apply(
        self: keras.optimizers.Optimizer, grads: Any, trainable_variables: Any = None
    ) -> Any:
        job = job_or_none()
        if job is not None and _are_expected.of(job):
            _are_expected.put(job, False)
            _look(job, self)
        return original(self, grads, trainable_variables)

    keras.optimizers.Optimizer.apply = apply


def _look(job: Job, optimizer: keras.optimizers.Optimizer) -> None:
    if job.size == 1 or is_told_of_lone_training.of(job):
        return
    around = calls.applying_optimizers()
    if any(map(OptimizerHook.of, [optimizer, *around])) or has_combined.of(job):
        return
    is_told_of_lone_training.put(job, True)
    _tell(job, optimizer)


def _tell(job: Job, optimizer: keras.optimizers.Optimizer) -> None:
    if job.rank == 0:
        logging.warning(
            "ring_keras: [RK651] "
            "optimizer '%s' applies gradients that the ranks have not averaged, so "
            "each rank trains a model of its own, on its part of the data. Give it to "
            "ring_keras.DistributedOptimizer(), or the tape to "
            "ring_keras.DistributedGradientTape().",
            optimizer.name,
        )
