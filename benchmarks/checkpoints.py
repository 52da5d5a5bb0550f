"""What `ring.callbacks.Checkpoint` costs a `fit`, beside Keras's `ModelCheckpoint`.

    python -m benchmarks.checkpoints [--quick]

Two ranks train the MLP of 6.3 million weights with Adam: without a checkpoint, with a
checkpoint of both ranks every 50 steps, and with Keras's callback, which rank 0 runs
alone, as often. In turn, many times; what is printed is the median of the differences
of a step's mean, with the quartiles, and how long the callback holds a step that saves.
Both write to the temporary directory, 76 MB each time. Let nothing else run meanwhile.
"""

from __future__ import annotations

import functools
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import ring_keras as ring
from benchmarks.in_turn import compare, started_ranks
from benchmarks.ranks.models import build_batch, build_model, build_optimizer, loss_of

_MODEL = "mlp+adam"
_EVERY = 50
_SAVES = 3
_STEPS = _SAVES * _EVERY


class _Stalls:
    """How long the callbacks between two of its own take in each batch.

    By the clock, and in processor time of the thread that calls them.
    """

    def __init__(self) -> None:
        self.batches: dict[int, tuple[float, float]] = {}
        self.epoch_s = 0.0

    def around(self, callbacks: list[Any]) -> list[Any]:
        first, last = _Edge(self, -1), _Edge(self, 1)
        return [first, *callbacks, last]

    def longest(self) -> list[tuple[float, float]]:
        """Of the batches that save; the last one saves at the end of the epoch."""
        return sorted(self.batches.values(), reverse=True)[: _SAVES - 1]


class _Edge(keras.callbacks.Callback):
    def __init__(self, stalls: _Stalls, sign: int) -> None:
        super().__init__()
        self._stalls = stalls
        self._sign = sign

    def _note(self, batch: int) -> None:
        clock_s, thread_s = self._stalls.batches.get(batch, (0.0, 0.0))
        self._stalls.batches[batch] = (
            clock_s + self._sign * time.perf_counter(),
            thread_s + self._sign * time.thread_time(),
        )

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._note(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note(batch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._sign < 0:
            self._stalls.epoch_s = -time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._sign > 0:
            self._stalls.epoch_s += time.perf_counter()


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    is_rank, quick = started_ranks("benchmarks.checkpoints", __doc__ or "")
    if not is_rank:
        return
    model = build_model(_MODEL)
    model.compile(ring.DistributedOptimizer(build_optimizer(_MODEL)), loss=loss_of())
    batch = tf.data.Dataset.from_tensors(build_batch(_MODEL, ring.rank())).repeat()
    own = tempfile.mkdtemp() if ring.rank() == 0 else None
    directory = Path(ring.broadcast_object(own))
    try:
        savers: dict[str, list[Any]] = {
            "none": [],
            "Checkpoint": [
                ring.callbacks.Checkpoint(directory / "parts", every=_EVERY)
            ],
            "ModelCheckpoint": [
                keras.callbacks.ModelCheckpoint(
                    directory / "model.keras", save_freq=_EVERY
                )
            ],
        }
        stalls: dict[str, list[tuple[float, float]]] = {label: [] for label in savers}
        ways = {
            label: functools.partial(
                _mean_step_s, model, batch, callbacks, stalls[label]
            )
            for label, callbacks in savers.items()
        }
        compare(
            f"{_MODEL}, saved every {_EVERY} steps", ways, 3 if quick else 11, 1e3, "ms"
        )
    finally:
        ring.barrier(name="end")
        if own is not None:
            shutil.rmtree(own)
    for label in ("Checkpoint", "ModelCheckpoint") if ring.rank() == 0 else ():
        held, computed = (
            sorted(1e3 * seconds for seconds in kind)
            for kind in zip(*stalls[label], strict=True)
        )
        print(
            f"    {label} holds a step that saves for {statistics.median(held):.1f} ms "
            f"({held[0]:.1f} to {held[-1]:.1f}), of which the thread computes for "
            f"{statistics.median(computed):.1f} ms",
            flush=True,
        )


def _mean_step_s(
    model: Any,
    batch: tf.data.Dataset,
    callbacks: list[Any],
    held: list[tuple[float, float]],
) -> float:
    stalls = _Stalls()
    model.fit(
        batch, steps_per_epoch=_STEPS, verbose=0, callbacks=stalls.around(callbacks)
    )
    held += stalls.longest()
    return stalls.epoch_s / _STEPS


if __name__ == "__main__":
    main()
