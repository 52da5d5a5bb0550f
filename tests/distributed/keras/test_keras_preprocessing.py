"""Layers with state that is no weight: what `adapt()` learns, and random generators."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.variants import variants

import ring_keras as ring
from ring_keras.elastic.fit_state import FitState

ROWS = np.arange(16, dtype=np.float32)[:, None] + 3.0


def normalizing():
    """A model that gives back its normalized input, whatever it is trained with."""
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Normalization(),
            keras.layers.Dense(1, kernel_initializer="ones", use_bias=False),
        ]
    )
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    return model


def right(x, of):
    return (x - of.mean()) / of.std()


def adapted_worker(adapt):
    """What the ranks compute once they have trained together, twice."""
    model = normalizing()
    errors = []
    for shift in (0.0, 20.0):  # The second time the step is traced already.
        of = [ROWS + shift, ROWS[4 * ring.rank() :] * 2.0 + shift][adapt == "own"]
        if ring.rank() == 0 or adapt == "own":
            model.layers[0].adapt(of)
        trained = model.fit(ROWS, ROWS, batch_size=16, verbose=0).history["loss"][0]
        of = (ROWS if adapt == "first" else ROWS * 2.0) + shift  # The first rank's.
        expected = right(ROWS, of)
        errors.append(abs(trained / np.mean((expected - ROWS) ** 2) - 1.0))
        errors.append(np.abs(model.predict(ROWS, verbose=0) - expected).max())
        errors.append(np.abs(ring.predict(model, ROWS) - expected).max())
    return float(max(errors))


@pytest.mark.parametrize(
    "adapt", ["first", pytest.param("own", marks=pytest.mark.slow)]
)
def test_all_ranks_normalize_alike(rank_pool, adapt):
    assert max(rank_pool(2).run(adapted_worker, args=(adapt,))) < 1e-5


def loop_worker():
    """Where no `fit` sees to it: broadcast, a kept state, and a step without both."""
    rank = ring.rank()
    models = [normalizing() for _ in range(3)]
    for model in models:
        if rank == 0:
            model.layers[0].adapt(ROWS)
    ring.broadcast_variables(models[0].weights)
    outputs = [models[0](ROWS).numpy()]
    state = ring.elastic.KerasState(models[1])
    state.take_from(0)
    state.commit()
    models[1].layers[0].adapt(ROWS * 5.0)
    state.restore()
    outputs.append(models[1](ROWS).numpy())
    with pytest.raises(ring.RankMismatchError, match="RK333"):
        models[2].train_on_batch(ROWS, ROWS)
    models[2].train_on_batch(ROWS, ROWS)
    outputs.append(models[2](ROWS).numpy())
    return float(max(np.abs(one - right(ROWS, ROWS)).max() for one in outputs))


def test_a_loop_normalizes_alike(rank_pool):
    assert max(rank_pool(2).run(loop_worker)) < 1e-5


def with_vocabulary(words):
    text = keras.layers.TextVectorization(output_mode="int", output_sequence_length=1)
    text.adapt(words)
    return text


LAYERS = {
    "vocabulary": (lambda values: with_vocabulary([f"w{v}" for v in values]), "w1"),
    "bin boundaries": (
        lambda values: adapted(keras.layers.Discretization(num_bins=3), values),
        1.0,
    ),
    "document frequencies": (
        lambda values: keras.layers.IntegerLookup(
            vocabulary=[1, 2], idf_weights=[0.1, values[0]], output_mode="tf_idf"
        ),
        1,
    ),
    "constants": (
        lambda values: keras.layers.Normalization(mean=values[0], variance=1.0),
        1.0,
    ),
}


def adapted(layer, values):
    layer.adapt(np.array(values, np.float32)[:, None])
    return layer


def differing_worker(what):
    """Errors where the ranks have seen other values, and none where they have not."""
    make, example = LAYERS[what]
    data = tf.data.Dataset.from_tensors((tf.constant([[example]] * 8), tf.zeros(8)))
    caught = []
    for values in ([1.0, 2.0], [1.0 + ring.rank(), 5.0, 5.0]):
        layer = make(values)
        # One that is deep inside of the model that is trained.
        inputs = keras.Input((1,), dtype=data.element_spec[0].dtype)
        inner = keras.Model(inputs, layer(inputs))
        outputs = keras.layers.Dense(1)(keras.ops.cast(inner(inputs), "float32"))
        model = keras.Model(inputs, outputs)
        model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
        for run in (
            lambda model=model: model.fit(data, verbose=0),
            lambda model=model: ring.evaluate(model, data),
        ):
            try:
                run()
            except ring.RankMismatchError as error:
                caught.append((str(error), layer.name))
    return caught


@pytest.mark.parametrize("what", variants(["vocabulary"], LAYERS))
def test_layers_that_have_learned_other_things_are_refused(rank_pool, what):
    for caught in rank_pool(2).run(differing_worker, args=(what,)):
        assert len(caught) == 2
        for message, layer in caught:
            assert "[RK330]" in message
            assert f"layer '{layer}' does not have the same {what}" in message
            assert "before ring_keras.data.shard()" in message


def drawing(seed):
    """A model that shows what it draws: dropout of ones."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dropout(0.5, seed=seed),
            keras.layers.Dense(1, kernel_initializer="ones", use_bias=False),
        ]
    )
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    return model


def masks_worker(seed):
    """Which bits are dropped in the step after some fits, and the seeds."""
    model = drawing(seed)
    ones = np.ones((4, 64), np.float32)
    seeds = []
    for _ in range(2):
        model.fit(ones, ones[:, :1], batch_size=4, verbose=0)
        seeds.append(model.layers[0].seed_generator.state.numpy().tolist())
    mask = model.layers[0](ones, training=True).numpy() > 0.0
    return seeds, mask.astype(int).ravel().tolist(), drawn_by_one(seed, ones)


def drawn_by_one(seed, ones):
    layer = drawing(seed).layers[0]
    for _ in range(2):
        layer(ones, training=True)
    return (layer(ones, training=True).numpy() > 0.0).astype(int).ravel().tolist()


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.slow
def test_ranks_of_one_seed_draw_apart(rank_pool, seed):
    results = rank_pool(2).run(masks_worker, args=(seed,))
    again = rank_pool(2).run(masks_worker, args=(seed,))

    (seeds, first, alone), (others, second, _) = results
    assert np.mean(np.array(first) == second) == pytest.approx(0.5, abs=0.15)
    assert first == alone, "the first rank draws as one process does"
    assert [seeds[0][0], others[0][0]] == [seeds[1][0], others[1][0]]
    assert again == results, "another run draws the same"


def newcomer_worker():
    """What a rank that comes later is given by those that train already."""
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Normalization(),
            keras.layers.Dropout(0.5, seed=3),
            keras.layers.Dense(1, kernel_initializer="ones", use_bias=False),
        ]
    )
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    model.optimizer.build(model.trainable_variables)
    state = FitState(model)
    if ring.rank() == 1:
        model.layers[0].adapt(ROWS)
    is_new = ring.rank() == 0
    taken = [state.take_from(1, is_new=is_new) for _ in range(2)]
    output = model(ROWS).numpy()
    seed = int(model.layers[1].seed_generator.state.numpy()[0])
    return taken, float(np.abs(output - right(ROWS, ROWS)).max()), seed


def test_a_rank_that_comes_later_normalizes_alike_and_draws_apart(rank_pool):
    results = rank_pool(2).run(newcomer_worker)

    for taken, difference, _ in results:
        assert taken == [True, False]
        assert difference < 1e-5
    assert results[0][2] == 3
    assert results[1][2] != 3
