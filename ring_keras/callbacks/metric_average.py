"""Metrics over all ranks' data."""

from typing import Any

import keras

from ring_keras.callbacks.fit_side import fit_side

__all__ = ["MetricAverage"]


class MetricAverage(keras.callbacks.Callback):
    """Makes epoch and evaluation metrics those of all ranks' data together.

    The state of each metric (its totals and counts) is summed over the ranks, and the
    result is computed from the sum. So loss, accuracy, AUC, precision, R2 and so on are
    those that one process would report, also with uneven data. Every callback sees the
    same values, wherever it stands in the list, so `EarlyStopping` and
    `ReduceLROnPlateau` decide alike on all ranks. Give it to `fit` and, on every rank,
    to `evaluate`.

    Which metrics are exact:

    - All whose state adds up. That is true of all metrics of Keras but two:
      `PearsonCorrelation` and `ConcordanceCorrelation` along `axis=0` are means over
      batches, so they depend on how the data are cut into batches, on one rank, too.
    - A metric of your own whose state does not add up needs a method
      `merge_ranks(states)`, which sets its state to that of all ranks. `states` has,
      for each rank, the values of `variables`, or the result of the metric's
      `rank_state()`.
    - If `train_step` returns keys that are not the model's metrics, their scalars are
      averaged.
    - Logs of single batches, and so the progress bar within an epoch, stay this rank's
      own.

    All ranks evaluate and save the same model: with any callback of this package, the
    moving statistics of `keras.layers.BatchNormalization` are averaged at the end of an
    epoch, before validation. See `ring_keras.layers.average_moving_statistics`.

    A callback may stop training on one rank, because of its batch, as
    `keras.callbacks.TerminateOnNaN` does, or by the clock. Then all ranks end the epoch
    after the same step.

    `evaluate` without this callback reports on this rank's data only. It does not
    communicate, not even if a callback calls it within `fit`, so one rank may call it
    alone.

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

    ranks_meet_in = ("fit", "evaluate")

    def __init__(self) -> None:
        super().__init__()
        fit_side().prepare_callbacks()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """This `fit` reports of all ranks' data."""
        fit_side().report_fit(self)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As `on_train_begin`, for `evaluate`."""
        fit_side().report_evaluation(self, in_fit=True)
