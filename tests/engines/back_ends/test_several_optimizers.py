"""Several optimizers on torch and JAX, and `train_on_batch`, which has no `fit`."""

from __future__ import annotations

import numpy as np
import pytest
from support.back_ends import BACK_END, HAS_EXECUTIONS, begin, needs_back_end, ranks

needs_back_end()

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

ROWS, BATCH = 24, 6
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def data():
    x = np.random.default_rng(3).normal(size=(ROWS, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True) ** 2


def own_data(ring):
    return tuple(array[ring.rank() :: ring.size()] for array in data())


def build(keras, seed=5, layers=1):
    keras.utils.set_random_seed(seed)
    body = [keras.layers.Dense(4, "tanh", name=f"body{n}") for n in range(layers)]
    head = keras.layers.Dense(1, name="head")
    return keras.Sequential([keras.Input((4,)), *body, head])


def compiled(ring, model, keras, loss="mse", **options):
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
    model.compile(optimizer, loss)
    return model


def weights_of(model):
    return [np.array(weight.numpy()) for weight in model.trainable_weights]


def assert_equal(first, *others):
    for weights in others:
        for one, other in zip(first, weights, strict=True):
            np.testing.assert_array_equal(one, other)


def sets_worker():
    """Two of three ranks train one model first; all train another one then."""
    ring = begin()
    import keras

    mine = ring.add_process_set([0, 1])
    x, y = own_data(ring)
    if mine.included():
        small = compiled(ring, build(keras), keras, process_set=mine)
        small.fit(x, y, batch_size=4, verbose=0)
    large = compiled(ring, build(keras, layers=2), keras)
    large.fit(x, y, batch_size=4, verbose=0)
    return weights_of(large)


def test_ranks_that_have_trained_another_model_meet_the_others():
    assert_equal(*ranks(sets_worker, 3, timeout_s=120))


def retry_worker():
    """The first step fails on one rank; a new optimizer trains then."""
    ring = begin()
    import keras

    x, y = own_data(ring)
    model = compiled(ring, build(keras), keras)
    told = ""
    try:
        wrong = x[:, :3] if ring.rank() == 1 else x
        model.fit(wrong, y, batch_size=BATCH, verbose=0)
    except Exception as error:
        told = type(error).__name__
    model = compiled(ring, build(keras), keras)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    return told, weights_of(model)


def test_a_new_optimizer_trains_after_one_whose_first_step_failed():
    (one_told, one), (other_told, other) = ranks(retry_worker, 2, timeout_s=120)

    assert one_told and other_told
    assert_equal(one, other)


def overflow_worker(alone):
    """Gradients overflow on one rank: of two optimizers, loss-scaled."""
    ring = None if alone else begin()
    import keras

    model = build(keras)
    optimizers = [keras.optimizers.SGD(0.01), keras.optimizers.Adam(0.01)]
    x, y = data()
    y[BATCH + 1] = 1e38  # In the part of rank 1.
    batch = BATCH
    if ring is not None:
        optimizers = [ring.DistributedOptimizer(one) for one in optimizers]
        x, y = (array[ring.rank() :: ring.size()] for array in (x, y))
        batch //= ring.size()
    rules = keras.optimizers.OptimizerMap(optimizers[0])
    rules["head/.*"] = optimizers[1]
    optimizer = keras.optimizers.MultiOptimizer(rules)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer), "mse")
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    return weights_of(model)


def test_all_ranks_skip_an_update_of_several_optimizers():
    (alone,) = ranks(overflow_worker, 1, True)

    for weights in ranks(overflow_worker, 2, False, timeout_s=120):
        for one, other in zip(weights, alone, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)


def on_batch_worker(reduction, alone):
    """`train_on_batch` of ranks that have begun differently, with uneven batches."""
    ring = None if alone else begin()
    import keras

    optimizer = keras.optimizers.SGD(0.01)
    if ring is None:
        model, own = build(keras), slice(None)
    else:
        model = build(keras, 5 + ring.rank())
        own = (slice(0, 4), slice(4, 6))[ring.rank()]
        optimizer = ring.DistributedOptimizer(optimizer)
    model.compile(optimizer, keras.losses.MeanSquaredError(reduction=reduction))
    x, y = data()
    for start in range(0, ROWS, BATCH):
        rows = slice(start, start + BATCH)
        model.train_on_batch(x[rows][own], y[rows][own])
    return weights_of(model)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
def test_train_on_batch_is_that_of_one_process(reduction):
    (alone,) = ranks(on_batch_worker, 1, reduction, True)

    for weights in ranks(on_batch_worker, 2, reduction, False):
        for one, other in zip(weights, alone, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)


def added_worker(steps):
    """A summed loss, and one that a layer adds in the forward pass alone."""
    ring = begin()
    import keras

    class Adds(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
            return inputs

    keras.utils.set_random_seed(5)
    x, y = own_data(ring)
    model = keras.Sequential([keras.Input((4,)), Adds(), keras.layers.Dense(1)])
    compiled(ring, model, keras, keras.losses.MeanSquaredError(reduction="sum"))
    before = weights_of(model)
    with pytest.raises(ring.RingKerasError) as caught:
        for _ in range(steps):
            model.train_on_batch(x[:BATCH], y[:BATCH])
    return str(caught.value), before, weights_of(model)


def test_what_layers_add_beside_such_a_loss_is_refused_before_the_first_update():
    on_jax = BACK_END == "jax"  # Whose failed step leaves no weights.
    for text, before, after in ranks(added_worker, 2, 1):
        assert text.startswith("[RK603]"), text
        if not on_jax:
            assert_equal(before, after)


def beside_worker(reduction):
    """A loss by which ranks count otherwise, beside one that only a step shows."""
    ring = begin()
    import keras

    x, y = own_data(ring)
    regularizer = keras.regularizers.L2(0.1)
    first = keras.layers.Dense(4, activity_regularizer=regularizer)
    model = keras.Sequential([keras.Input((4,)), first, keras.layers.Dense(1)])
    compiled(ring, model, keras, keras.losses.MeanSquaredError(reduction=reduction))
    weights = np.linspace(1, 2, len(x))
    with pytest.raises(ring.RingKerasError) as caught:
        model.fit(x, y, batch_size=BATCH, sample_weight=weights, verbose=0)
    return str(caught.value)


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_what_is_added_beside_such_a_loss_is_refused(reduction):
    for text in ranks(beside_worker, 2, reduction):
        assert text.startswith("[RK603]"), text


def drift_worker():
    """What only the optimizer keeps comes to differ on one rank."""
    ring = begin()
    import keras

    class Drifts(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if ring.rank() == 1:
                self.model.optimizer.iterations.assign_add(5)

    x, y = own_data(ring)
    model = build(keras)
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    per_execution = 3 if HAS_EXECUTIONS else 1
    model.compile(optimizer, "mse", steps_per_execution=per_execution)
    with pytest.raises(ring.RankMismatchError) as caught:
        model.fit(x, y, batch_size=2, verbose=0, callbacks=[Drifts()])
    return per_execution, str(caught.value)


def test_checks_of_steps_see_the_optimizer_and_whole_executions():
    found = ranks(drift_worker, 2, env={"RING_KERAS_CHECK_STEPS": "4"})

    for per_execution, text in found:
        steps = 4 if per_execution == 1 else 6
        assert "iteration" in text and f"{steps} steps after its beginning" in text


def by_function_worker():
    """A `MultiOptimizer` that is not built, of a model that is."""
    ring = begin()
    import keras

    x, y = own_data(ring)
    model = build(keras)
    head, body = (
        ring.DistributedOptimizer(one(0.01))
        for one in (keras.optimizers.Adam, keras.optimizers.SGD)
    )
    optimizer = keras.optimizers.MultiOptimizer(
        lambda variable: head if "head" in variable.path else body
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=BATCH, verbose=0).history
    return history, weights_of(model)


def test_the_first_fit_of_optimizers_by_function_is_one_of_all_ranks():
    (one_history, one), (other_history, other) = ranks(by_function_worker, 2)

    assert one_history == other_history
    assert_equal(one, other)
