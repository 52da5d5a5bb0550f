"""Accumulated gradients cross the wire once per update."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring
from ring_keras import keras_internals as internals
from ring_keras.optimizers import gradient_reducer

STEPS = 6


def count_worker(accumulation, scaled):
    """How often gradients were sent in some steps, and updates made."""
    started = []
    original = gradient_reducer.allreduce_start

    def counting(tensors, *args, **kwargs):
        started.append(len(tensors))
        return original(tensors, *args, **kwargs)

    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulation)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model = training.build(1)
    training.compile_model(
        model, ring.DistributedOptimizer(optimizer), run_eagerly=True
    )
    gradient_reducer.allreduce_start = counting
    try:
        training.fit(
            model,
            ring.data.shard(training.dataset(STEPS * 4 * ring.size())),
            4,
            callbacks=[ring.callbacks.MetricAverage()],
        )
    finally:
        gradient_reducer.allreduce_start = original
    assert set(started) == {len(model.trainable_variables)}
    return len(started)


@pytest.mark.parametrize(
    ("accumulation", "scaled", "sent"),
    [
        (2, False, STEPS // 2),
        pytest.param(None, False, STEPS, marks=pytest.mark.slow),
        pytest.param(3, False, STEPS // 3, marks=pytest.mark.slow),
        (3, True, STEPS // 3),
    ],
)
def test_gradients_are_sent_once_per_update(rank_pool, accumulation, scaled, sent):
    assert rank_pool(2).run(count_worker, args=(accumulation, scaled)) == [sent] * 2


def kept_worker():
    """What each rank has added up, after it has taken another's state."""
    rank = ring.rank()
    model = training.build(1)
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    model.compile(optimizer, loss="mse")
    state = ring.elastic.KerasState(model)
    own = internals.accumulators([optimizer])[0]
    values = []
    # In the second case the others have updated once more.
    for steps in ((2, 2), (5, 2), (7, 7)):
        internals.iterations(optimizer).assign(steps[rank])
        own.assign(own * 0.0 + rank + 1.0)
        state.save()
        own.assign(own * 0.0)
        state.restore()
        state.take_from(0)
        values.append(float(own.numpy().ravel()[0]))
    return values


def test_a_state_has_what_its_rank_has_added_up(rank_pool):
    assert rank_pool(2).run(kept_worker) == [[1.0, 1.0, 1.0], [2.0, 0.0, 2.0]]


class AddsUpByTape(keras.Model):
    """Two passes make an update."""

    def train_step(self, data):
        x, y = data
        with ring.DistributedGradientTape(
            tf.GradientTape(), backward_passes_per_step=2
        ) as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class OwnCheckpoint(ring.callbacks.Checkpoint):
    """As in a user's script."""


OwnCheckpoint.__module__ = "__main__"


def lost_passes_worker(directory, run_eagerly):
    """What is said of callbacks in the first `fit`, and in a later one."""

    def said(model, *names, epochs=1):
        resume = ring.data.Resume()
        made = {
            "Checkpoint": lambda: ring.callbacks.Checkpoint(f"{directory}/parts"),
            "OwnCheckpoint": lambda: OwnCheckpoint(f"{directory}/others"),
            "Preemption": lambda: ring.callbacks.Preemption(f"{directory}/backup"),
            "Resume": lambda: resume,
            "BackupAndRestore": lambda: keras.callbacks.BackupAndRestore(
                f"{directory}/keras", save_freq=1
            ),
            "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint(
                f"{directory}/kept.keras", save_freq=1
            ),
        }
        data = ring.data.shard(training.dataset(16), seed=1, resume=resume).batch(4)
        callbacks = [ring.callbacks.BroadcastGlobalVariables()]
        callbacks += [made[name]() for name in names]
        try:
            model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
        except ValueError as error:
            return str(error)
        return ""

    def new_model():
        model = training.build(1, AddsUpByTape)
        model.compile("sgd", "binary_crossentropy", run_eagerly=run_eagerly)
        return model

    model = new_model()
    good = [said(model), said(model, "Preemption"), said(model, "Resume")]
    refused = {
        # There are steps left that Resume does not pass over.
        (by, when, *names): said(
            model if when == "later" else new_model(), *names, epochs=99
        )
        for by, *names in (
            ("callbacks.Checkpoint", "Checkpoint"),
            ("callbacks.Checkpoint", "OwnCheckpoint"),
            ("callbacks.Preemption", "Preemption", "Resume"),
            ("data.Resume", "BackupAndRestore", "Resume"),
            ("data.Resume", "Resume", "ModelCheckpoint"),
        )
        for when in ("first", "later")
    }
    return good, refused


@pytest.mark.parametrize(
    "run_eagerly", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_passes_of_a_tape_are_not_lost_in_silence(rank_pool, tmp_path, run_eagerly):
    results = rank_pool(2).run(lost_passes_worker, args=(str(tmp_path), run_eagerly))

    for good, refused in results:
        assert good == ["", "", ""]
        assert len(refused) == 10
        for (name, *_), text in refused.items():
            assert f"[RK522] ring_keras.{name} " in text
            assert "gradient_accumulation_steps=2" in text
