"""A `train_step` that calls its optimizer's `apply` several times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring

STEPS = 5


class Twice(keras.Model):
    """Two updates by each batch."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def fit(callbacks: list[Any], resume: Any, epochs: int = 2, **options: Any) -> Any:
    model = training.build(1, Twice)
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    training.compile_model(model, optimizer, **options)
    data = training.dataset(STEPS * training.BATCH * ring.size())
    mine = ring.data.shard(data, seed=1, resume=resume).batch(training.BATCH)
    found = model.fit(mine, epochs=epochs, verbose=0, callbacks=callbacks)
    return model, found.history


def place_worker(directory: str, options: dict[str, Any]) -> None:
    """The number of updates is no number of batches."""
    resume = ring.data.Resume()
    backup = keras.callbacks.BackupAndRestore(f"{directory}/keras", save_freq=1)
    with pytest.raises(ValueError, match=r"\[RK512\].*apply\(\) several times"):
        fit([backup, resume], resume, **options)
    # All ranks hear of it, so all are here.
    assert int(ring.allreduce(1, "sum")) == ring.size()

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                raise RuntimeError("stopped")

    def checkpoint() -> Any:
        return ring.callbacks.Checkpoint(f"{directory}/parts", every=2)

    resume = ring.data.Resume()
    with pytest.raises(RuntimeError, match="stopped"):
        fit([checkpoint(), resume, Stop()], resume, **options)
    resumed, _ = fit([checkpoint(), resume], resume, **options)
    resume = ring.data.Resume()
    # Not interrupted.
    expected, _ = fit(
        [ring.callbacks.Checkpoint(f"{directory}/others"), resume], resume, **options
    )
    assert training.as_bytes(resumed.weights) == training.as_bytes(expected.weights)


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"run_eagerly": True}, marks=pytest.mark.slow)],
    ids=str,
)
def test_a_place_is_not_read_off_several_updates(
    rank_pool: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    rank_pool(2).run(place_worker, args=(str(tmp_path), options))


def rates(steps_per_epoch: int | None, **options: Any) -> list[float]:
    callbacks = [
        ring.callbacks.LearningRateWarmup(
            0.1, warmup_epochs=2, steps_per_epoch=steps_per_epoch
        ),
        ring.callbacks.LearningRateSchedule(
            0.1, 0.1, start_epoch=3, steps_per_epoch=steps_per_epoch
        ),
    ]
    _, history = fit(callbacks, ring.data.Resume(), epochs=4, **options)
    return history["learning_rate"]


def rates_worker(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\[RK621\] LearningRateWarmup tells epochs"):
        rates(None, **options)
    found = rates(2 * STEPS, **options)
    assert found[1:] == pytest.approx([0.2, 0.2, 0.02], rel=0.1)


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"steps_per_execution": 2}, marks=pytest.mark.slow)],
    ids=str,
)
def test_epochs_are_not_told_by_several_updates(
    rank_pool: Any, options: dict[str, Any]
) -> None:
    rank_pool(2).run(rates_worker, args=(options,))
