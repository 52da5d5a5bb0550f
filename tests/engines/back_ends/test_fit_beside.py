"""Training beside a `fit` on torch or JAX, and what callbacks do in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engines.back_ends.test_fit_failures import (
    assert_equal_on_all,
    batches_of,
    begun,
    data_of,
    message_of,
    ring_rank,
    state_of,
)
from support.back_ends import BACK_END, HAS_EXECUTIONS, begin, needs_back_end, ranks
from support.variants import variants

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


def train_alone(model, x, y):
    """Keras's own `train_on_batch` on JAX, within its `fit`.

    With executions of several steps Keras 3.16.0.dev2026102704 takes the batch for
    as many batches, and raises.
    """
    model.jax_state_sync()  # Keras's `fit` has taken the values.
    kept = model.steps_per_execution, model.train_function
    model.steps_per_execution, model.train_function = 1, None
    model.train_on_batch(x, y)
    model.steps_per_execution, model.train_function = kept


class Beside:
    """A callback that trains at both ends of each batch but the first; may stop."""

    def __init__(self, keras, trained, x, y, *, steps, stops=False, alone=False):
        self.heard = []

        def train(batch):
            if batch == 0:
                return
            if alone and BACK_END == "jax":
                train_alone(trained, x, y)
            else:
                trained.train_on_batch(x, y)

        def begin(batch, logs):
            self.heard.append(("begin", batch // steps))
            train(batch)

        def end(batch, logs):
            # Before Keras 3.11 it is told the first batch of the execution.
            self.heard.append(("end", batch // steps))
            if stops and batch >= 4 - steps:
                self.callback.model.stop_training = True
            train(batch)

        self.callback = keras.callbacks.LambdaCallback(
            on_train_batch_begin=begin, on_train_batch_end=end
        )


def small_models(keras, distributed, steps):
    """Two, of which the first one takes so many steps at once."""
    models = []
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(
            distributed(keras.optimizers.SGD(0.05)),
            loss="mse",
            steps_per_execution=steps if seed == 1 else 1,
        )
        models.append(model)
    return models


def stopping_worker(own, steps, given, stops):
    """`stops`: on the second rank; else it has fewer batches, and all go on."""
    ring = begin()
    import keras

    model, other = small_models(keras, ring.DistributedOptimizer, steps)
    rank = ring.rank()
    x, y = data_of(rank, 48 if stops else 48 - 12 * rank)
    data = {"x": x, "y": y, "batch_size": 6}
    if given == "generator":
        data = {"x": batches_of(x, y)}
    beside = Beside(
        keras,
        model if own else other,
        *data_of(7, 5),
        steps=steps,
        stops=stops and rank == 1,
    )
    told = message_of(
        lambda: model.fit(**data, shuffle=False, verbose=0, callbacks=[beside.callback])
    )
    weights = [one for each in (model, other) for one in state_of(each)]
    model.fit(x[:12], y[:12], verbose=0)
    return beside.heard, told, weights, state_of(model)


@pytest.mark.parametrize(
    ("own", "given"),
    variants(
        [(True, "arrays"), (False, "generator")],
        [(True, "generator"), (False, "arrays")],
    ),
)
@pytest.mark.parametrize("steps", [1, 2] if HAS_EXECUTIONS else [1])
def test_callbacks_hear_of_the_same_batches_and_train_where_a_rank_stops(
    own, given, steps
):
    import keras

    found = ranks(stopping_worker, 2, own, steps, given, True)

    for heard, told, *_ in found:
        assert told is None
        assert heard == [
            (event, execution)
            for execution in range(4 // steps)
            for event in ("begin", "end")
        ]
    assert_equal_on_all([weights for _, _, weights, _ in found])
    assert_equal_on_all([after for *_, after in found])

    model, other = small_models(keras, lambda one: one, steps)
    pairs = [data_of(rank, 48) for rank in range(2)]
    x, y = (
        np.concatenate([part[6 * b : 6 * b + 6] for b in range(8) for part in whole])
        for whole in zip(*pairs, strict=True)
    )
    beside = Beside(
        keras,
        model if own else other,
        *data_of(7, 5),
        steps=steps,
        stops=True,
        alone=True,
    )
    model.fit(
        x, y, batch_size=12, shuffle=False, verbose=0, callbacks=[beside.callback]
    )
    expected = [one for each in (model, other) for one in state_of(each)]
    for ours, theirs in zip(found[0][2], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_training_beside_a_batch_that_one_rank_does_not_have_is_refused():
    found = ranks(stopping_worker, 2, False, 1, "generator", False)

    for _, told, *_ in found:
        assert told[0] == "RankMismatchError"
        assert told[1].startswith("[RK318] fit(): after 6 steps of the epoch ranks [1]")
    assert_equal_on_all([weights for _, _, weights, _ in found])
    assert_equal_on_all([after for *_, after in found])


def failing_worker():
    """On rank 1 a callback fails as a batch begins that all take."""
    ring, keras, model = begun(seed=ring_rank())
    x, y = data_of(ring.rank())

    def fail(batch, logs):
        if ring.rank() == 1 and batch == 2:
            raise OSError("no disk")

    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=fail)
    told = message_of(
        lambda: model.fit(x, y, batch_size=6, verbose=0, callbacks=[callback])
    )
    # On JAX the other rank's first model has lost its values in the step.
    _, _, another = begun()
    another.fit(x, y, batch_size=6, verbose=0)
    return told, state_of(another)


def test_a_callback_that_fails_as_a_batch_begins_is_told():
    (told, weights), (failed, others) = ranks(failing_worker, 2)

    assert "no disk" in failed[1]
    assert "[RK310]" in told[1]
    assert "no disk" in told[1]
    assert_equal_on_all([weights, others])


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
