"""What `ring.callbacks.TensorBoard` costs a `fit`, beside Keras's own.

    python -m benchmarks.callback [--quick]

Two ranks train the deep narrow net without a callback for TensorBoard, with Keras's own
on rank 0 alone, with the same and all ranks' figures in its file, and with that of
ring_keras on both, in turn, many times; what is printed is the median of the
differences of a step's mean, and the quartiles. Let nothing else run meanwhile. Then
the same of the processor time of the thread of `fit` on rank 0, which writes: other
programs hardly change it.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import ring_keras as ring
from benchmarks.in_turn import compare, started_ranks
from benchmarks.ranks.models import build_batch, build_model, build_optimizer, loss_of

_STEPS = 400
# Batches between two looks at the ranks' numbers.
_UPDATE_FREQ = 100


class _Clock(keras.callbacks.Callback):
    """Measures an epoch.

    It has no method for batches: one that has makes `fit` another.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.began_at = self._now()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds = self._now() - self.began_at


class _Alone(keras.callbacks.TensorBoard):
    """Beside a subclass nothing is written."""


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    is_rank, quick = started_ranks("benchmarks.callback", __doc__ or "")
    if not is_rank:
        return
    model = build_model("deep")
    model.compile(ring.DistributedOptimizer(build_optimizer("deep")), loss=loss_of())
    batch = tf.data.Dataset.from_tensors(build_batch("deep", ring.rank())).repeat()
    with tempfile.TemporaryDirectory() as logs:
        alone, listed = (
            board_class(f"{logs}/{board_class.__name__}", update_freq=_UPDATE_FREQ)
            for board_class in (_Alone, keras.callbacks.TensorBoard)
        )
        boards: dict[str, list[Any]] = {
            "none": [],
            "Keras's alone on rank 0": [ring.callbacks.RootOnly(alone)],
            "Keras's, and all ranks' figures": [ring.callbacks.RootOnly(listed)],
            "ring_keras's": [
                ring.callbacks.TensorBoard(f"{logs}/ring", update_freq=_UPDATE_FREQ)
            ],
        }
        for what, now in (
            ("deep narrow net", time.perf_counter),
            ("processor time of its fit", time.thread_time),
        ):
            ways = {
                label: functools.partial(_mean_step_s, now, model, batch, callbacks)
                for label, callbacks in boards.items()
            }
            compare(what, ways, 7 if quick else 40, 1e6, "us")


def _mean_step_s(
    now: Callable[[], float],
    model: Any,
    batch: tf.data.Dataset,
    callbacks: list[Any],
) -> float:
    # Before the others: what they write after an epoch is not meant.
    clock = _Clock(now)
    spread = ring.callbacks.BroadcastGlobalVariables()
    model.fit(
        batch,
        steps_per_epoch=_STEPS,
        verbose=0,
        callbacks=[clock, spread, *callbacks],
    )
    return clock.seconds / _STEPS


if __name__ == "__main__":
    main()
