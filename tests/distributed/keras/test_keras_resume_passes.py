"""Each epoch of a training that can be resumed is one pass over its data."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring
from ring_keras import keras_internals as internals

EPOCHS = 3
BATCH = 2
# Of a pass, on each of 2 ranks.
STEPS = 6


def part_of_passes_worker(steps):
    model = training.build(3)
    training.compile_model(model, training.OPTIMIZERS["sgd"]())
    resume = ring.data.Resume()
    part = ring.data.shard(training.dataset(24), seed=1, resume=resume)
    count = 12 // ring.size() + ring.rank()
    batches = part.batch(2).apply(tf.data.experimental.assert_cardinality(count))
    with pytest.raises(ValueError, match="whole passes") as caught:
        model.fit(batches, steps_per_epoch=steps, callbacks=[resume], verbose=0)
    assert internals.steps_done(model.optimizer) == 0
    return str(caught.value)


@pytest.mark.parametrize("steps", [6, 5, 8])
def test_epochs_that_are_not_whole_passes_are_refused_on_all_ranks(rank_pool, steps):
    said = rank_pool(2).run(part_of_passes_worker, args=(steps,))

    assert said[0] == said[1]


class Interrupt(keras.callbacks.Callback):
    """Ends training after so many steps, with an exception as a crash would."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        if internals.steps_done(self.model.optimizer) >= self.steps:
            raise KeyboardInterrupt


def train(directory, steps, per_execution=1, interrupt_after=None):
    """On data whose number of batches nobody knows."""
    keras.utils.set_random_seed(1)
    model = training.build(3)
    training.compile_model(
        model, training.OPTIMIZERS["sgd"](), steps_per_execution=per_execution
    )
    resume = ring.data.Resume()
    part = ring.data.shard(training.dataset(24), seed=1, resume=resume)
    data = part.filter(lambda *_: True).batch(BATCH)
    callbacks = [
        ring.callbacks.Distributed(),
        keras.callbacks.BackupAndRestore(directory, save_freq=per_execution),
        resume,
    ]
    if interrupt_after is not None:
        callbacks.append(Interrupt(interrupt_after))
    model.fit(
        data, epochs=EPOCHS, steps_per_epoch=steps, verbose=0, callbacks=callbacks
    )
    return training.as_bytes(model.get_weights()), int(model.optimizer.iterations)


def whole_passes_worker(directory, per_execution):
    whole, taken = train(f"{directory}/whole", STEPS, per_execution)
    assert taken == EPOCHS * STEPS
    for stop in (4, STEPS + 2):
        with pytest.raises(KeyboardInterrupt):
            train(f"{directory}/parts", STEPS, per_execution, interrupt_after=stop)
    assert train(f"{directory}/parts", STEPS, per_execution) == (whole, taken)


@pytest.mark.parametrize("per_execution", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_data_of_unknown_length_are_resumed(rank_pool, tmp_path, per_execution):
    rank_pool(2).run(
        whole_passes_worker, args=(str(tmp_path), per_execution), timeout_s=120
    )


def unknown_passes_worker(directory, steps):
    with pytest.raises(ValueError, match="whole passes") as caught:
        train(directory, steps)
    return str(caught.value)


@pytest.mark.parametrize(
    ("steps", "what"), [(STEPS - 2, "more"), (STEPS + 1, "fewer"), (20, "fewer")]
)
def test_parts_of_unknown_passes_are_refused_on_all_ranks(
    rank_pool, tmp_path, steps, what
):
    said = rank_pool(2).run(unknown_passes_worker, args=(str(tmp_path), steps))

    assert said[0] == said[1]
    assert f"of which ranks [0, 1] have {what} batches" in said[0]


def error_behind_a_pass_worker():
    """What follows the epoch's last batch on rank 1 fails where it is looked for."""
    model = training.build(3)
    training.compile_model(model, training.OPTIMIZERS["sgd"]())
    resume = ring.data.Resume()
    part = ring.data.shard(training.dataset(24), seed=1, resume=resume)
    data = part.filter(lambda *_: True).batch(BATCH)
    if ring.rank() == 1:
        last = data.take(1)
        bad = last.map(lambda x, y: (tf.debugging.check_numerics(x / 0.0, "bad"), y))
        data = data.concatenate(bad)
    with pytest.raises(ring.RankMismatchError) as caught:
        model.fit(data, epochs=2, steps_per_epoch=STEPS, callbacks=[resume], verbose=0)
    return str(caught.value)


def test_an_error_behind_a_pass_is_told_to_all(rank_pool):
    for message in rank_pool(2).run(error_behind_a_pass_worker, timeout_s=60):
        assert "ring_keras.data.Resume failed on rank 1" in message
