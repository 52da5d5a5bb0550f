"""Metrics over all ranks' data."""

from typing import Any

import keras

from ring_keras.keras_internals import calls
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.epoch_result import EpochResult
from ring_keras.training.evaluation_step import EvaluationStep

__all__ = ["MetricAverage"]


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
    scalars are averaged. A metric of your own whose state does not add up has a method
    `merge_ranks(states)`, which sets it to that of all ranks: each rank's values of
    `variables`, or what the metric's `rank_state()` returns. Logs of single batches,
    and so the progress bar within an epoch, stay this rank's own.

    All ranks evaluate, and save, the same model: with any callback of ours, moving
    statistics of `keras.layers.BatchNormalization` are averaged at the end of an
    epoch, before validation, see `ring_keras.layers.average_moving_statistics`.

    A callback that stops training because of such a batch, as
    `keras.callbacks.TerminateOnNaN` does, or by the clock, stops all ranks: they
    end the epoch after the same step.

    An `evaluate` without this callback is this rank's own, also one that a callback
    calls within `fit`: it asks no other rank, so that one may call it alone.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[ring.callbacks.MetricAverage()])
        >>> ring.agree_on(history.history["loss"]) == history.history["loss"]
        True
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """This `fit` reports of all ranks' data."""
        attach(self.model)
        DistributedFit.begin(self)
        self._cover_all_ranks()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As `on_train_begin`, for `evaluate`."""
        EvaluationStep.prepare(self.model)
        self._cover_all_ranks()

    def _cover_all_ranks(self) -> None:
        callbacks = calls.calling_callback_list()
        if callbacks is not None:
            EpochResult.of(self.model).cover_all_ranks(callbacks)
