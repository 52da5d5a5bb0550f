"""Adds what the ranks measure to the logs that other callbacks write."""

from __future__ import annotations

import time
from typing import Any

import keras

from ring_keras.monitoring.rows import Row, Update
from ring_keras.monitoring.scalars import scalars_of
from ring_keras.monitoring.stats import StepTotals, stats
from ring_keras.ops.objects import allgather_object
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.train_step import process_set_of

__all__ = ["RingMetrics"]


class RingMetrics(keras.callbacks.Callback):
    """Adds figures of all ranks to an epoch's logs, under `ring/`.

    For callbacks that write logs and know nothing of ranks, those of MLflow and
    Weights & Biases for instance; they stand after it, in `RootOnly`:

    ```python
    callbacks = [
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
        ring.callbacks.RingMetrics(),
        ring.callbacks.RootOnly(WandbMetricsLogger()),
    ]
    ```

    They are means over the epoch's steps and the ranks, in seconds a step:
    `ring/duration_s` and its parts `ring/compute_s`, `ring/input_s`, `ring/wait_s` and
    `ring/exposed_s`; besides `ring/overlap_s`, `ring/bytes_per_step`,
    `ring/bus_bandwidth_bytes_per_s`, `ring/scaling_efficiency`, and where the number
    of examples is known `ring/examples_per_s`, also of each rank. One small
    collective an epoch gathers them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: StepTotals | None = None
        self._began_at = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Hooks the model, so that its steps are seen completely."""
        attach(self.model)
        DistributedFit.begin(self)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Figures are those since then."""
        self._before = stats(most_steps=0).totals
        self._began_at = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Gathers the figures; the same logs on every rank."""
        process_set = process_set_of(self.model)
        if logs is None or not process_set.included():
            return
        now = stats(most_steps=0)
        row = Row.between(now.rank, now.host, self._before, now.totals)
        elapsed_s = time.monotonic() - self._began_at
        of_ranks = allgather_object(
            (row.to_json(), elapsed_s), name="ring_metrics", process_set=process_set
        )
        rows = tuple(Row.from_json(row) for row, _ in of_ranks)
        if any(row.steps for row in rows):
            update = Update(epoch, time.time(), rows)
            longest_s = max(seconds for _, seconds in of_ranks)
            logs.update(scalars_of(update, longest_s, ()))
