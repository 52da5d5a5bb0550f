"""Metrics over all ranks' data."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.topology import rank
from ring_keras.layers.moving_statistics import average_moving_statistics
from ring_keras.ops.reduce_op import ReduceOp
from ring_keras.training.attachment import attach, process_set_of
from ring_keras.training.train_function import TrainFunction

__all__ = ["MetricAverage"]

_CORRELATIONS = tuple(
    getattr(keras.metrics, name)
    for name in ("ConcordanceCorrelation", "PearsonCorrelation")
    if hasattr(keras.metrics, name)  # Older Keras has neither.
)


class MetricAverage(keras.callbacks.Callback):
    """Makes epoch and evaluation metrics those of all ranks' data together.

    The state of each metric (its totals and counts) is summed over the ranks
    and the result computed from that, so loss, accuracy, AUC, precision, R2
    and so on are what one process would report, also with uneven data. Every
    callback sees the same values wherever it stands in the list, hence
    `EarlyStopping` and `ReduceLROnPlateau` decide alike on all ranks. Give it
    to `fit` and, on every rank, to `evaluate`.

    Exact for metrics whose state adds up, as that of all of Keras's does. Only
    `PearsonCorrelation` and `ConcordanceCorrelation` along `axis=0` are means of
    their results on each batch, so they depend on how data are cut into batches,
    on one rank too. If `train_step` returns other keys than the model's metrics, their
    scalars are averaged. Logs of single batches, and so the progress bar within
    an epoch, stay this rank's own.

    All ranks evaluate, and save, the same model: at the end of an epoch, before
    validation, moving statistics of `keras.layers.BatchNormalization` are averaged,
    see `ring_keras.layers.average_moving_statistics`.

    A callback that stops training because of such a batch, as
    `keras.callbacks.TerminateOnNaN` does, therefore stops its own rank only,
    and the others wait for it until `RING_KERAS_COLLECTIVE_TIMEOUT_S`, warned
    by then of the missing rank. Decide at the end of an epoch, where all ranks
    see the same, or raise an exception, which ends the whole job.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training: TrainFunction | None = None
        self._testing = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Metrics are summed from here on."""
        _, self._training = attach(self.model)
        self._training.unreported = False
        self._testing = False
        self._install()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Metrics are local again."""
        self._training = None
        self._uninstall()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As `on_train_begin`, for `evaluate`."""
        self._testing = True
        self._install()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """As `on_train_end`; `fit` goes on after its validation."""
        self._testing = False
        if self._training is None:
            self._uninstall()

    def _install(self) -> None:
        internals.replace(self.model, internals.METRICS_RESULT, self._result)

    def _uninstall(self) -> None:
        # Later, evaluate() without this callback asks no other rank, so that
        # one rank may call it alone.
        internals.restore(self.model, internals.METRICS_RESULT)

    def _result(self, logs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replaces the model's method; called at the end of an epoch."""
        local = getattr(type(self.model), internals.METRICS_RESULT)
        process_set = process_set_of(self.model)
        alone = process_set.size() == 1 or not process_set.included()
        if self._all_ranks_report():
            if not self._testing:
                average_moving_statistics(self.model, process_set)
        else:
            # A `fit` that failed has left this here; now one rank evaluates.
            self.on_train_end()
            alone = True
        if alone:
            result: Mapping[str, Any] = local(self.model, logs)
            return result
        _say_what_is_inexact(self.model)
        communicator_id = process_set.communicator_id()
        with _summed(self.model, communicator_id):
            result = local(self.model, logs)
        if result is logs and isinstance(logs, Mapping):
            return _averaged(logs, communicator_id)
        return result

    def _all_ranks_report(self) -> bool:
        """Whether this is the end of an epoch, or of a test with this callback."""
        if self._testing:
            return True
        if self._training is None or not self._training.unreported:
            return False
        self._training.unreported = False
        return True


def _say_what_is_inexact(model: keras.Model) -> None:
    metrics = tf.nest.flatten([getattr(m, "metrics", m) for m in model.metrics])
    names = [
        metric.name
        for metric in metrics
        if isinstance(metric, _CORRELATIONS) and 0 in np.atleast_1d(metric.axis)
    ]
    if names and rank() == 0:
        logging.log_first_n(
            logging.WARNING,
            "ring_keras: %s: a mean of what each batch gives, which is not what one "
            "process gives on batches as large as all ranks' together. All ranks "
            "report the same.",
            1,
            ", ".join(names),
        )


@contextmanager
def _summed(model: keras.Model, communicator_id: int) -> Iterator[None]:
    """The metrics' state is that of all ranks inside, and this rank's after."""
    by_dtype: dict[str, list[Any]] = {}
    seen: set[int] = set()
    for metric in model.metrics:
        for variable in metric.variables:
            if id(variable) not in seen:
                seen.add(id(variable))
                by_dtype.setdefault(str(variable.dtype), []).append(variable)
    local = {
        dtype: [np.asarray(variable.numpy()) for variable in variables]
        for dtype, variables in by_dtype.items()
    }
    for dtype, variables in sorted(by_dtype.items()):
        flat = np.concatenate([value.ravel() for value in local[dtype]])
        total = _native.allreduce(
            flat, op="sum", name=f"metrics/{dtype}", communicator_id=communicator_id
        )
        start = 0
        for variable, value in zip(variables, local[dtype], strict=True):
            variable.assign(total[start : start + value.size].reshape(value.shape))
            start += value.size
    try:
        yield
    finally:
        for dtype, variables in by_dtype.items():
            for variable, value in zip(variables, local[dtype], strict=True):
                variable.assign(value)


def _averaged(logs: Mapping[str, Any], communicator_id: int) -> dict[str, Any]:
    """The logs with the mean over ranks of every scalar."""
    keys = sorted(key for key, value in logs.items() if np.ndim(value) == 0)
    means = _native.allreduce(
        np.array([float(logs[key]) for key in keys], np.float64),
        op=ReduceOp.AVERAGE.value,
        name="metrics/logs",
        communicator_id=communicator_id,
    )
    return {**logs, **dict(zip(keys, means.tolist(), strict=True))}
