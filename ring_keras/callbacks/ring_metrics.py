"""Adds what the ranks measure to the logs that other callbacks write."""

from __future__ import annotations

import time
from typing import Any

import keras

from ring_keras.callbacks.meeting_figures import MeetingFigures
from ring_keras.monitoring.meetings import Apart, scalars_of_apart
from ring_keras.monitoring.rows import Row, Update
from ring_keras.monitoring.scalars import scalars_of
from ring_keras.monitoring.stats import StepTotals, stats
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit, Moment
from ring_keras.training.distributed_models import process_set_of
from ring_keras.values.objects import allgather_object

__all__ = ["RingMetrics"]


class RingMetrics(keras.callbacks.Callback):
    """Adds figures of all ranks to an epoch's logs, under `ring/`.

    It serves callbacks that write logs and know nothing of ranks, such as those of
    MLflow and Weights & Biases. List them after it, in `RootOnly`:

    ```python
    callbacks = [
        ring.callbacks.RingMetrics(),
        ring.callbacks.RootOnly(WandbMetricsLogger()),
    ]
    ```

    The figures are means over the epoch's steps and the ranks:

    - `ring/duration_s`, seconds of a step, and its parts `ring/compute_s`,
      `ring/input_s`, `ring/wait_s` and `ring/exposed_s`.
    - `ring/overlap_s`, `ring/bytes_per_step`, `ring/bus_bandwidth_bytes_per_s` and
      `ring/scaling_efficiency`.
    - `ring/examples_per_s`, also of each rank, if the number of examples is known.
    - Of ranks that train apart, `ring/meeting_bytes`, `ring/meeting_drift` and
      `ring/meeting_update_norm`: means over the epoch's meetings, the last 64 at most.

    Validation does not count. Nor does the first execution of a `fit`, in which
    TensorFlow traces and compiles, unless its epoch has no other. One small collective
    an epoch gathers the figures. When ranks change, under
    `ring_keras.callbacks.Elastic`, figures begin anew.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[ring.callbacks.RingMetrics()])
        >>> len(history.history["ring/wait_s"])
        2
    """

    keeps_state = True

    def __init__(self) -> None:
        super().__init__()
        self._meetings: MeetingFigures | None = None
        self._before: StepTotals | None = None
        self._after_tracing: StepTotals | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Hooks the model, so that its steps are seen completely."""
        attach(self.model)
        fit = DistributedFit.begin(self)
        if fit is not None:
            fit.when(Moment.FIRST_EXECUTION_IS_DONE, self, self._leave_out)
            fit.when(Moment.RANKS_HAVE_CHANGED, self, lambda: self._follow(fit))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Figures are those since then."""
        self._begin_anew()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Gathers the figures; the same logs on every rank."""
        process_set = process_set_of(self.model)
        if logs is None or not process_set.included():
            return
        figures = DistributedFit.calling_sections().run(
            lambda: allgather_object(
                self._figures(), name="ring_metrics", process_set=process_set
            )
        )
        rows, aparts = zip(*figures, strict=True) if figures else ((), ())
        update = Update.from_json(epoch, time.time(), rows)
        if update.steps:
            logs.update(scalars_of(update, ()))
        logs.update(
            scalars_of_apart([list(map(Apart.from_json, apart)) for apart in aparts])
        )

    def _figures(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        assert self._meetings is not None
        return self._row().to_json(), [one.to_json() for one in self._meetings.take()]

    def _row(self) -> Row:
        now = stats(most_steps=0)
        row = Row.between(now.rank, now.host, self._after_tracing, now.totals)
        if self._after_tracing is None or not row.steps:
            row = Row.between(now.rank, now.host, self._before, now.totals)
        return row

    def _begin_anew(self) -> None:
        """Since now: with other ranks the sums begin anew."""
        self._before = stats(most_steps=0).totals
        self._after_tracing = None
        self._meetings = MeetingFigures(self.model)

    def _follow(self, fit: DistributedFit) -> None:
        """There are other ranks: their first execution is traced, too."""
        self._begin_anew()
        fit.when(Moment.FIRST_EXECUTION_IS_DONE, self, self._leave_out)

    def _leave_out(self) -> None:
        self._after_tracing = stats(most_steps=0).totals
