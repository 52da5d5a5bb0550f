"""Training beside a `fit` on torch or JAX, and what callbacks do in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engines.back_ends.test_fit_failures import (
    assert_equal_on_all,
    begun,
    data_of,
    message_of,
    ring_rank,
    state_of,
)
from support.back_ends import begin, needs_back_end, ranks

needs_back_end()

pytestmark = pytest.mark.engines


def inner_worker():
    """Callbacks that train, in and between epochs, and evaluate on one rank."""
    ring, keras, model = begun(seed=ring_rank())
    x, y = data_of(ring.rank())

    counts = []

    class Trains(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            before = int(model.optimizer.iterations)
            model.train_on_batch(x[:5], y[:5])
            model.fit(x, y, batch_size=12, epochs=2, verbose=0)
            if ring.rank() == 1:
                model.evaluate(x, y, verbose=0)
            counts.append(int(model.optimizer.iterations) - before)

        def on_train_batch_begin(self, batch, logs=None):
            if batch in (0, 2):
                model.train_on_batch(x[:5], y[:5])

        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                model.train_on_batch(x[:5], y[:5])

    history = model.fit(
        x, y, batch_size=6, epochs=2, verbose=0, callbacks=[Trains()]
    ).history
    assert model.train_function is not None
    again = model.fit(x, y, batch_size=6, verbose=0).history
    steps = int(model.optimizer.iterations)
    return counts, steps, history, again, state_of(model)


def test_callbacks_may_train_and_evaluate():
    found = ranks(inner_worker, 2)

    for counts, steps, *_ in found:
        # One batch, and a fit of two epochs of two; and three in each epoch of four.
        assert counts == [5, 5]
        assert steps == 2 * (4 + 3 + 5) + 4
    assert found[0][2:4] == found[1][2:4]
    assert_equal_on_all([state for *_, state in found])


def whole_model_worker():
    """A frozen layer, and one with constants, that only the first rank knows."""
    ring = begin()
    import keras

    keras.utils.set_random_seed(ring.rank())
    x, y = data_of(ring.rank())
    normal = keras.layers.Normalization()
    normal.build((None, 4))
    frozen = keras.layers.Dense(6)
    frozen.trainable = False
    model = keras.Sequential([keras.Input((4,)), normal, frozen, keras.layers.Dense(1)])
    if ring.rank() == 0:
        normal.adapt(x)
    model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
    model.train_on_batch(x[:4], y[:4])
    outputs = model.predict_on_batch(np.ones((2, 4), "float32"))
    # In a loop of one's own nobody knows of a model.
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    ring.broadcast_variables(other.weights, 1)
    return state_of(model), outputs, [weight.numpy() for weight in other.weights]


def test_all_begin_with_the_whole_model_of_the_first():
    found = ranks(whole_model_worker, 2)

    for place in range(3):
        if place == 1:
            np.testing.assert_array_equal(found[0][1], found[1][1])
        else:
            assert_equal_on_all([one[place] for one in found])


def own_files_worker(directory):
    ring, keras, model = begun(seed=ring_rank())
    x, y = data_of(ring.rank())
    rank = ring.rank()
    path = Path(directory)
    callbacks = [keras.callbacks.CSVLogger(path / f"log-{rank}.csv")]
    if rank == 1:
        callbacks.append(keras.callbacks.ModelCheckpoint(path / "model.keras"))
    listed = keras.callbacks.CallbackList(
        callbacks, add_history=True, model=model, epochs=2
    )
    model.fit(x, y, batch_size=6, epochs=2, verbose=0, callbacks=listed)
    return len(listed.callbacks)


def test_each_rank_may_write_files_of_its_own(tmp_path):
    counts = ranks(own_files_worker, 2, str(tmp_path))

    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["log-0.csv", "log-1.csv", "model.keras"]
    assert counts[1] == counts[0] + 1


def refused_worker():
    """What ranks must have in common, each time with a rank that differs."""
    ring, keras, model = begun(seed=ring_rank())
    rank = ring.rank()
    x, y = data_of(rank)

    class Slower(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if rank == 1:
                self.model.optimizer.learning_rate = 0.5

    found = [
        message_of(
            lambda: model.fit(x, y, verbose=0, class_weight={0: 1.0, 1: 1.0 + rank})
        ),
        message_of(lambda: model.fit(x, y, epochs=3, verbose=0, callbacks=[Slower()])),
        message_of(lambda: model.fit(x, y, epochs=1 + rank, verbose=0)),
        message_of(lambda: model.fit(x, y, validation_split=0.5, eqochs=1)),
    ]
    model.fit(x, y, verbose=0)
    return found, state_of(model)


def test_what_differs_is_told_on_all_ranks():
    found = ranks(refused_worker, 2)

    for messages, _ in found:
        begins = ["[RK326] fit(): class weights", "[RK341] fit(): before epoch 2"]
        begins.append("[RK326] fit(): epochs")
        for (kind, text), first in zip(messages, begins, strict=False):
            assert kind == "RankMismatchError"
            assert text.startswith(first), text
        assert messages[3][0] == "TypeError"
    assert_equal_on_all([state for _, state in found])


def accumulating_worker(path, epochs):
    """Begins in the middle of an accumulation, which the second time is a file's."""
    ring = begin()
    import keras

    x, y = data_of(ring.rank())
    if epochs:
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
        model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
    else:
        model = keras.models.load_model(path)
        ring.DistributedOptimizer(model.optimizer)
    fit = {"batch_size": 6, "epochs": 1, "verbose": 0, "shuffle": False}
    model.fit(x, y, **fit)  # 4 steps, of which the last begins anew.
    if epochs and ring.rank() == 0:
        model.save(path)
    ring.allgather_object(None)
    if epochs:
        model.fit(x, y, **fit)
    return [weight.numpy() for weight in model.weights]


def test_gradients_of_one_ranks_file_count_once(tmp_path):
    path = str(tmp_path / "model.keras")
    went_on = ranks(accumulating_worker, 2, path, 1)
    loaded = ranks(accumulating_worker, 2, path, 0, check=False)

    assert_equal_on_all(went_on)
    assert [one.stderr.count("[RK332]") for one in loaded] == [1, 0]
    assert_equal_on_all([one.result for one in loaded])
