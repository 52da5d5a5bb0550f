"""Mean and variance of a batch that is spread over the ranks."""

from __future__ import annotations

import functools
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring

LIMIT = 1e-6


def examples(rank: int, rows: int | None = None) -> np.ndarray:
    """Another distribution on each rank, far from 0, and another number of them."""
    generator = np.random.default_rng(10 + rank)
    count = 3 + 2 * rank if rows is None else rows
    return generator.normal(50 * rank, 1 + rank, size=(count, 4, 2)).astype(np.float32)


def forward_and_backward(layer, x, upstream):
    layer.build(x.shape)
    layer.gamma.assign([1.5, 0.5])
    layer.beta.assign([0.1, -0.2])
    x, upstream = tf.constant(x), tf.constant(upstream)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
        loss = tf.reduce_sum(y * upstream)
    return tape.gradient(loss, x).numpy(), y.numpy()


def moments_worker(rows, in_function):
    """Losses that add up: then gradients need no weights."""
    size, rank = ring.size(), ring.rank()
    parts = [examples(r, None if rows is None else rows[r]) for r in range(size)]
    upstream = [np.cos(part) for part in parts]
    layer = ring.layers.SyncBatchNormalization(momentum=0.5)
    run = functools.partial(forward_and_backward, layer)
    if in_function:
        alone = keras.layers.BatchNormalization()  # Builds outside of the function.
        layer.build(parts[0].shape)
        layer.gamma.assign([1.5, 0.5])
        layer.beta.assign([0.1, -0.2])

        @tf.function(input_signature=[tf.TensorSpec((None, 4, 2))] * 2)
        def step(x, upstream):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(y * upstream)
            return tape.gradient(loss, x), y

        gradient, y = (part.numpy() for part in step(parts[rank], upstream[rank]))
    else:
        gradient, y = run(parts[rank], upstream[rank])
    alone = keras.layers.BatchNormalization(momentum=0.5)
    all_gradient, all_y = forward_and_backward(
        alone, np.concatenate(parts), np.concatenate(upstream)
    )
    ends = np.cumsum([len(part) for part in parts])
    mine = slice(ends[rank] - len(parts[rank]), ends[rank])
    moving = [layer.moving_mean.numpy(), layer.moving_variance.numpy()]
    return (
        [
            relative(y, all_y[mine]),
            relative(gradient, all_gradient[mine]),
            relative(moving[0], alone.moving_mean.numpy()),
            relative(moving[1], alone.moving_variance.numpy()),
        ],
        training.as_bytes(moving),
    )


def relative(ours, theirs):
    if not theirs.size:
        return 0.0
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(("size", "rows"), [(2, None), (3, None), (3, (4, 0, 1))])
def test_moments_and_their_gradients(rank_pool, size, rows, in_function):
    results = rank_pool(size).run(moments_worker, args=(rows, in_function))

    for differences, _ in results:
        assert max(differences) <= 2e-6, differences
    assert len({moving for _, moving in results}) == 1, "ranks differ"


def process_set_worker():
    """Only the members are taken together; in inference nobody is."""
    x = examples(ring.rank())
    pair = ring.add_process_set([0, 2])
    try:
        layer = ring.layers.SyncBatchNormalization(process_set=pair)
        trained = layer(x, training=True).numpy()
        layer.trainable = False
        if ring.rank() == 0:  # Alone: a collective would wait for the others.
            layer(x, training=True)
            layer(x)
    finally:
        ring.remove_process_set(pair)
    if ring.rank() == 1:
        expected = keras.layers.BatchNormalization()(x, training=True)
    else:
        both = np.concatenate([examples(0), examples(2)])
        expected = keras.layers.BatchNormalization()(both, training=True)
        expected = expected[:3] if ring.rank() == 0 else expected[3:]
    return relative(trained, np.asarray(expected))


def test_a_process_set_is_taken_together(rank_pool):
    assert max(rank_pool(3).run(process_set_worker)) <= LIMIT


def own_model_worker():
    """Each rank trains a model of its own; the second one has more steps."""
    x = np.random.default_rng(ring.rank()).normal(size=(8 + 8 * ring.rank(), 4))
    y = np.ones((len(x), 1))

    def trained(optimizer, layer):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
        model.compile(optimizer, loss="mse")
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    own = [ring.add_process_set([rank]) for rank in range(ring.size())]
    try:
        optimizer = ring.DistributedOptimizer("sgd", process_set=own[ring.rank()])
        ours = trained(optimizer, ring.layers.SyncBatchNormalization())
    finally:
        for one in own:
            ring.remove_process_set(one)
    alone = trained("sgd", keras.layers.BatchNormalization())
    return max(relative(a, b) for a, b in zip(ours, alone, strict=True))


def test_models_of_single_ranks_are_not_mixed(rank_pool):
    assert max(rank_pool(2).run(own_model_worker)) <= LIMIT


LOADER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ring_keras":
            raise ImportError("ring_keras is not installed here")

sys.meta_path.insert(0, Blocker())
import keras, numpy
model = keras.models.load_model(sys.argv[1])
print(type(model.layers[0]).__name__, model.layers[0].synchronized)
print(model.predict(numpy.ones((1, 2)), verbose=0).tolist())
"""


@pytest.mark.slow
def test_a_saved_model_loads_without_this_package(tmp_path):
    model = keras.Sequential(
        [keras.Input((2,)), ring.layers.SyncBatchNormalization(momentum=0.5)]
    )
    model.layers[0].moving_mean.assign([0.5, 2.0])
    model.save(tmp_path / "model.keras")

    loaded = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path / "model.keras")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert loaded.returncode == 0, loaded.stderr
    name, flag, numbers = loaded.stdout.split(maxsplit=2)
    assert (name, flag) == ("BatchNormalization", "True")
    expected = model.predict(np.ones((1, 2)), verbose=0)
    np.testing.assert_allclose(eval(numbers), expected, rtol=1e-6)


def average_worker(renorm):
    """Layers that saw other data on each rank, beside one that saw all of it."""
    size, rank = ring.size(), ring.rank()
    layer, alone = (
        keras.layers.BatchNormalization(momentum=0.6, renorm=renorm) for _ in range(2)
    )
    frozen = keras.layers.BatchNormalization()
    frozen.build((None, 4, 2))
    frozen.moving_mean.assign([float(rank)] * 2)
    frozen.trainable = False
    model = keras.Sequential([layer, frozen])
    generator = np.random.default_rng(7)
    for _ in range(5):
        batches = [
            generator.normal(3 * r, 1 + r, size=(6, 4, 2)).astype(np.float32)
            for r in range(size)
        ]
        layer(batches[rank], training=True)
        alone(np.concatenate(batches), training=True)
    local = layer.moving_variance.numpy()
    plain = np.mean(ring.allgather(local[None]).numpy(), axis=0)
    ring.layers.average_moving_statistics(model)
    kept = frozen.moving_mean.numpy().tolist() == [float(rank)] * 2
    deviation = layer.moving_stddev.numpy() if renorm else None
    return {
        "state": training.as_bytes(layer.get_weights()),
        "mean": relative(layer.moving_mean.numpy(), alone.moving_mean.numpy()),
        "plain": plain,
        "ours": layer.moving_variance.numpy(),
        "global": alone.moving_variance.numpy(),
        "deviation": deviation,
        "kept": kept,
    }


@pytest.mark.parametrize(("size", "renorm"), [(2, False), (3, False), (2, True)])
def test_averaged_moving_statistics(rank_pool, size, renorm):
    results = rank_pool(size).run(average_worker, args=(renorm,))

    first = results[0]
    assert len({result["state"] for result in results}) == 1
    assert first["mean"] <= LIMIT
    # Nearer to one process than a plain mean of variances, and never beyond it.
    assert (first["plain"] < first["ours"]).all()
    assert (first["ours"] <= first["global"] * (1 + 1e-6)).all()
    assert all(result["kept"] for result in results), "a frozen layer was changed"
    if renorm:
        np.testing.assert_allclose(
            first["deviation"] ** 2, first["ours"] + 1e-3, rtol=1e-5
        )


class Saves(keras.callbacks.Callback):
    """What a checkpoint, and the validation, would have of the statistics."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_test_begin(self, logs=None):
        self._note()

    def on_epoch_end(self, epoch, logs=None):
        self._note()

    def _note(self):
        self.seen.append(training.as_bytes(self.model.get_weights()))


def epoch_worker():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(ring.DistributedOptimizer("sgd"), "mse")
    first, last = Saves(), Saves()
    data = ring.data.shard(training.dataset(16 * ring.size()))
    training.fit(
        model,
        data,
        4,
        epochs=2,
        validation_data=data.batch(4),
        callbacks=[
            first,
            ring.callbacks.MetricAverage(),
            ring.callbacks.BroadcastGlobalVariables(),
            last,
        ],
    )
    return first.seen, last.seen


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_validate_and_save_the_same_statistics(rank_pool, size):
    results = rank_pool(size).run(epoch_worker)

    assert all(result == results[0] for result in results)
    for seen in results[0]:
        assert len(set(seen)) == 2, "one state for validation and saving, per epoch"


def later_worker(what):
    """A model that has been traced, or a part of it, becomes synchronized."""
    normalization = keras.layers.BatchNormalization(momentum=0.0)
    part = keras.Sequential([keras.Input((4,)), normalization])
    model = keras.Sequential([keras.Input((4,)), part])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    x = np.full((8, 4), float(ring.rank()), np.float32)

    def fit():
        callbacks = [ring.callbacks.BroadcastGlobalVariables()]
        model.fit(x, x, batch_size=4, verbose=0, callbacks=callbacks)

    fit()
    ring.layers.synchronize_batch_normalization({"model": model, "part": part}[what])
    fit()
    return normalization.moving_mean.numpy(), normalization.moving_variance.numpy()


@pytest.mark.parametrize("what", ["model", "part"])
def test_what_was_traced_before_is_traced_anew(rank_pool, what):
    for mean, variance in rank_pool(2).run(functools.partial(later_worker, what)):
        np.testing.assert_allclose(mean, 0.5, atol=LIMIT)
        np.testing.assert_allclose(variance, 0.25, atol=LIMIT)


def summed_worker():
    """Gradients of a loss that adds up, of batches of 3, 5 and so on examples."""
    x = examples(ring.rank())
    layer = ring.layers.SyncBatchNormalization()
    layer.build(x.shape)
    scale = tf.Variable(tf.ones([4, 1]))

    def loss_of(values, normalization):
        return tf.reduce_sum(tf.sin(normalization(values * scale, training=True)))

    with ring.data.weighted_step(x) as (mine, _):
        with ring.DistributedGradientTape(tf.GradientTape(), op=ring.Sum) as tape:
            loss = loss_of(mine, layer)
        gradient = tape.gradient(loss, scale)
    alone = keras.layers.BatchNormalization()
    alone.build(x.shape)
    with tf.GradientTape() as tape:
        everyones = [examples(rank) for rank in range(ring.size())]
        loss = loss_of(tf.concat(everyones, 0), alone)
    return gradient.numpy(), tape.gradient(loss, scale).numpy()


def joined_sets_worker():
    """The first half of the ranks has 1 batch, the other has 3; each half is a set."""
    half = ring.size() // 2
    sets = [ring.add_process_set(range(half))]
    sets.append(ring.add_process_set(range(half, ring.size())))
    second = ring.rank() >= half
    x = np.full([12 if second else 4, 3], 5.0, np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4)
    layer = ring.layers.SyncBatchNormalization(
        process_set=sets[second], momentum=0.5, name="synchronized"
    )
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    model.fit(ring.data.join(data), verbose=0)
    moving = layer.moving_mean.numpy()
    for process_set in sets:
        ring.remove_process_set(process_set)
    return moving


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_set_without_batches_keeps_its_moving_statistics(rank_pool, size):
    for moving in rank_pool(size).run(joined_sets_worker):
        # The mean over the sets, as `fit` takes it, of 5 (1 - 1/2) and 5 (1 - 1/8).
        np.testing.assert_allclose(moving, (2.5 + 4.375) / 2, rtol=1e-6)


def sum_optimizer_worker():
    normalization = ring.layers.SyncBatchNormalization()
    layers = [keras.layers.Dense(2), normalization, keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4, 2)), *layers])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1.0), op=ring.Sum)
    before = [variable.numpy() for variable in model.trainable_variables]
    with ring.data.weighted_step(examples(ring.rank()), model=model) as (mine, _):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(mine, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        with pytest.raises(ring.RingKerasError) as caught:
            optimizer.apply(gradients, model.trainable_variables)
    after = [variable.numpy() for variable in model.trainable_variables]
    np.testing.assert_equal(after, before)
    return str(caught.value)


def test_what_was_weighted_for_an_average_is_not_added_up(rank_pool):
    for message in rank_pool(2).run(sum_optimizer_worker):
        assert "[RK416]" in message and "op='sum'" in message


def test_sums_over_uneven_batches_are_those_of_one_process(rank_pool):
    for ours, theirs in rank_pool(2).run(summed_worker):
        assert relative(ours, theirs) < 1e-4
