"""Ranks with different numbers of examples train like one process with all."""

from __future__ import annotations

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.variants import variants

import ring_keras as ring

SIZES = [2, pytest.param(3, marks=pytest.mark.slow)]
EPOCHS = 2


def network():
    optimizer = keras.optimizers.Adam(0.01)
    # Without XLA TensorFlow counts a step at the end of data of unknown length.
    return training.compile_model(training.build(3), optimizer, jit_compile=False)


def fit(model, dataset, **kwargs):
    return model.fit(dataset, shuffle=False, verbose=0, **kwargs).history


def everything(*_):
    return True


def callbacks():
    return [ring.callbacks.BroadcastGlobalVariables(), ring.callbacks.MetricAverage()]


def train_on_ranks(part, **kwargs):
    model = network()
    history = fit(model, part, callbacks=callbacks(), **kwargs)
    return training.as_bytes(model.get_weights()), model.get_weights(), history


def assert_equal_to_one_process(results, batches, epochs=EPOCHS):
    model = network()
    history = fit(model, batches, epochs=epochs)
    assert len({as_bytes for as_bytes, _, _ in results}) == 1
    _, weights, theirs = results[0]
    assert training.largest_difference(weights, model.get_weights()) < 1e-6
    assert training.history_difference(theirs, history) < 1e-6
    assert all(history == results[0][2] for _, _, history in results)


def spread(count, size, known=True):
    """The batches of one process: rank r's k-th, with k, in one."""
    parts = [list(range(rank, count, size)) for rank in range(size)]
    x, y = training.arrays()
    rounds = []
    for start in range(0, len(parts[0]), training.BATCH):
        rows = [row for p in parts for row in p[start : start + training.BATCH]]
        rounds.append((x[rows], y[rows]))
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(rounds),
        output_signature=(
            tf.TensorSpec([None, 6], tf.float32),
            tf.TensorSpec([None, 1], tf.float32),
        ),
    )
    # Keras counts one more step in an epoch whose length it does not know.
    if known:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(rounds)))
    return dataset


def joined_worker(count, known):
    dataset = training.dataset(count)
    if not known:
        dataset = dataset.filter(everything)
    part = ring.data.shard(dataset, remainder="keep").batch(training.BATCH)
    return train_on_ranks(ring.data.join(part), epochs=EPOCHS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("known", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_rank_without_data_goes_on_with_the_others(rank_pool, size, known):
    # Rank 0 has one example more, in a batch of its own.
    count = training.BATCH * size * 5 + 1
    results = rank_pool(size).run(
        functools.partial(joined_worker, count=count, known=known)
    )

    assert_equal_to_one_process(results, spread(count, size, known))


def padded_worker(count, kind):
    x, y = training.arrays()
    data = {
        "dataset": lambda: training.dataset(count),
        "unknown": lambda: training.dataset(count).filter(everything),
        "arrays": lambda: (x[:count], y[:count]),
    }[kind]()
    part = ring.data.shard(data, remainder="pad")
    if kind == "arrays":
        part = tf.data.Dataset.from_tensor_slices(part)
    return train_on_ranks(part.batch(training.BATCH), epochs=EPOCHS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "kind",
    [
        "dataset",
        pytest.param("arrays", marks=pytest.mark.slow),
        pytest.param("unknown", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "surplus", [pytest.param(1, marks=pytest.mark.slow), training.BATCH * 2 - 1]
)
def test_padding_counts_for_nothing(rank_pool, size, kind, surplus):
    count = training.BATCH * size * 3 + surplus
    results = rank_pool(size).run(
        functools.partial(padded_worker, count=count, kind=kind)
    )

    assert_equal_to_one_process(results, spread(count, size, kind != "unknown"))


def evaluates(kind):
    rows = training.BATCH * ring.size() + 1  # Of the last, the others have nothing.
    data = training.dataset(rows)
    remainder = "keep" if kind == "joined" else "pad"
    part = ring.data.shard(data, remainder=remainder).batch(training.BATCH)
    if kind == "joined":
        part = ring.data.join(part)
    model = training.build(3)
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.0))
    training.compile_model(model, optimizer, jit_compile=kind == "xla")
    model.evaluate(data.batch(2), verbose=0)  # Its function is not the one to use.
    average = [ring.callbacks.MetricAverage()]
    if kind == "fit":
        history = fit(model, part, validation_data=part, callbacks=average)
        of_all = {
            name: history[f"val_{name}"][-1] for name in history if "val" not in name
        }
    else:
        of_all = model.evaluate(part, verbose=0, callbacks=average, return_dict=True)
    alone = training.compile_model(training.build(3), keras.optimizers.SGD())
    return of_all, alone.evaluate(data.batch(rows), verbose=0, return_dict=True)


@pytest.mark.parametrize(
    "kind",
    [
        "joined",
        pytest.param("fit", marks=pytest.mark.slow),
        pytest.param("evaluate", marks=pytest.mark.slow),
        pytest.param("xla", marks=pytest.mark.slow),
    ],
)
def test_what_is_not_there_counts_for_nothing_in_an_evaluation(rank_pool, kind):
    for of_all, alone in rank_pool(2).run(evaluates, args=(kind,)):
        assert of_all == pytest.approx(alone, abs=1e-6)


class Batches(keras.utils.PyDataset):
    def __init__(self, count, **kwargs):
        super().__init__(**kwargs)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        x, y = training.arrays()
        rows = slice(index * training.BATCH, (index + 1) * training.BATCH)
        return x[rows], y[rows]


def py_dataset_worker(count, **kwargs):
    part = ring.data.shard(Batches(count, **kwargs), remainder="pad")
    return train_on_ranks(part, epochs=EPOCHS)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"workers": 3}, marks=pytest.mark.slow),
        {"workers": 2, "use_multiprocessing": True},
    ],
    ids=str,
)
def test_batches_of_a_py_dataset_are_padded(rank_pool, size, how):
    count = 3 * size + 1
    results = rank_pool(size).run(
        functools.partial(py_dataset_worker, count=count, **how)
    )

    x, y = training.arrays()
    rows = count * training.BATCH
    batches = tf.data.Dataset.from_tensor_slices((x[:rows], y[:rows]))
    assert_equal_to_one_process(results, batches.batch(training.BATCH * size))


def statistics_worker():
    """This rank's moving statistics after steps of which rank 1 has no part."""
    inputs = keras.Input((6,))
    outputs = keras.layers.BatchNormalization(momentum=0.5)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(outputs))
    training.compile_model(model, keras.optimizers.SGD(0.1))
    count = 1 if ring.rank() == 1 else 3
    dataset = training.dataset(count * training.BATCH).batch(training.BATCH)
    means = []  # At the end of the epoch they are averaged over the ranks.
    keeps = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: means.append(
            model.layers[1].moving_mean.numpy()
        )
    )
    callbacks = [ring.callbacks.BroadcastGlobalVariables(), keeps]
    fit(model, ring.data.join(dataset), callbacks=callbacks)
    mean = means[-1]
    x, _ = training.arrays()
    expected = np.zeros(6, np.float32)
    for start in range(0, count * training.BATCH, training.BATCH):
        batch_mean = x[start : start + training.BATCH].mean(axis=0)
        expected = 0.5 * expected + 0.5 * batch_mean
    return float(np.abs(mean - expected).max()), int(model.optimizer.iterations)


def test_moving_statistics_see_real_batches_only(rank_pool):
    for difference, steps in rank_pool(2).run(statistics_worker):
        assert difference < 1e-6
        assert steps == 3


def normalizing_network(layer):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(8, activation="tanh")(inputs)
    outputs = layer(outputs)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(outputs))
    # Adam would move the bias before the normalization, which has no gradient.
    return training.compile_model(model, keras.optimizers.SGD(0.1))


def synchronized_worker(count):
    part = ring.data.shard(training.dataset(count), remainder="keep")
    model = normalizing_network(ring.layers.SyncBatchNormalization())
    fit(model, ring.data.join(part.batch(training.BATCH)), callbacks=callbacks())
    return training.as_bytes(model.get_weights()), model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_moments_of_all_ranks_are_those_of_real_batches(rank_pool, size):
    count = training.BATCH * size * 3 + 1
    results = rank_pool(size).run(functools.partial(synchronized_worker, count=count))

    model = normalizing_network(keras.layers.BatchNormalization())
    fit(model, spread(count, size))
    assert len({as_bytes for as_bytes, _ in results}) == 1
    assert training.largest_difference(results[0][1], model.get_weights()) < 1e-5


class Shares(keras.layers.Layer):
    """Each feature's share of its row; NaN for a row of zeros."""

    def call(self, x):
        return x / keras.ops.sum(keras.ops.abs(x), axis=-1, keepdims=True)


class TapeModel(keras.Model):
    """Adds the gradients of two passes up by a tape, as means of both."""

    def train_step(self, data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with ring.DistributedGradientTape(
            tf.GradientTape(),
            backward_passes_per_step=2,
            average_aggregated_gradients=True,
        ) as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weights)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply(gradients, variables)  # Zeros after the first pass.
        return {"loss": loss}


def spectral_worker():
    """Its kernel follows from a vector that each step makes of the kernel."""
    rows = (12, 48)[ring.rank()]
    x = np.random.default_rng(ring.rank()).normal(size=(rows, 6)).astype("float32")
    keras.utils.set_random_seed(1)
    dense = keras.layers.SpectralNormalization(keras.layers.Dense(4, "tanh"))
    model = keras.Sequential([keras.Input((6,)), dense, keras.layers.Dense(1)])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.05))
    model.compile(optimizer, "mse")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(6)
    fit(model, ring.data.join(data), epochs=EPOCHS)
    return [weight.tobytes() for weight in model.get_weights()]


def test_spectral_normalization_follows_the_weights(rank_pool):
    first, second = rank_pool(2).run(spectral_worker)
    assert first == second


def sharing_network(normalization, passes=None, cls=keras.Model, scaled=False):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(8, use_bias=False)(Shares()(inputs))
    outputs = keras.layers.Activation("tanh")(normalization(outputs))
    model = cls(inputs, keras.layers.Dense(1, activation="sigmoid")(outputs))
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=passes)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 1024.0)
    return training.compile_model(model, optimizer)


def sharing_worker(how, passes, kind):
    normalization = ring.layers.SyncBatchNormalization()
    if kind == "tape":
        model = sharing_network(normalization, cls=TapeModel)
    else:
        model = sharing_network(normalization, passes, scaled=kind == "scaled")
    if how == "pad":  # Rank 1 has a batch of padding.
        data = ring.data.shard(Batches(2 * 3 + 1), remainder="pad")
    else:  # Rank 1 has no fourth batch.
        count = 4 - ring.rank()
        data = training.dataset(count * training.BATCH).batch(training.BATCH)
        data = ring.data.join(data)
    fit(model, data, callbacks=callbacks())
    return model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "passes", "kind"),
    [
        ("pad", None, "plain"),
        ("join", None, "plain"),
        ("pad", 2, "scaled"),
        ("join", 2, "tape"),
        ("pad", 2, "plain"),
        ("join", 2, "scaled"),
        ("pad", 2, "tape"),
    ],
)
def test_what_a_model_makes_of_no_examples_counts_for_nothing(
    rank_pool, how, passes, kind
):
    """But what it has added up in passes before does."""
    first, second = rank_pool(2).run(sharing_worker, args=(how, passes, kind))

    x, y = training.arrays()
    starts = [training.BATCH * index for index in range(7)]
    if how == "pad":
        steps = [starts[2 * step : 2 * step + 2] for step in range(4)]
    else:  # Both have the same rows.
        steps = [[starts[step]] * (2 if step < 3 else 1) for step in range(4)]
    rounds = [
        np.concatenate([np.arange(start, start + training.BATCH) for start in step])
        for step in steps
    ]
    model = sharing_network(keras.layers.BatchNormalization(), passes)
    for rows in rounds:
        model.train_on_batch(x[rows], y[rows])
    for weights in (first, second):
        assert training.largest_difference(weights, model.get_weights()) < 1e-5


def custom_loop_worker(count):
    model = network()
    model.build((None, 6))
    model.optimizer.build(model.trainable_variables)
    ring.broadcast_variables([*model.weights, *model.optimizer.variables])
    loss_of = keras.losses.BinaryCrossentropy()
    mean_loss = keras.metrics.Mean()
    losses = []

    @tf.function(reduce_retracing=True)
    def train_step(batch):
        with ring.data.weighted_step(batch) as ((x, y), examples):
            with ring.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = loss_of(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        mean_loss.update_state(loss, sample_weight=examples)

    part = ring.data.shard(training.dataset(count), remainder="keep")
    part = ring.data.join(part.batch(training.BATCH))
    for _ in range(EPOCHS):
        mean_loss.reset_state()
        for batch in part:
            train_step(batch)
        total = ring.allreduce(mean_loss.total, "sum", name="loss/total")
        losses.append(float(total) / count)
    return training.as_bytes(model.get_weights()), model.get_weights(), losses


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_custom_loop_with_uneven_data_is_exact(rank_pool, size):
    count = training.BATCH * size * 3 + 1
    results = rank_pool(size).run(functools.partial(custom_loop_worker, count=count))

    model = network()
    history = fit(model, spread(count, size), epochs=EPOCHS)
    assert len({as_bytes for as_bytes, _, _ in results}) == 1
    for _, weights, losses in results:
        assert training.largest_difference(weights, model.get_weights()) < 1e-6
        np.testing.assert_allclose(losses, history["loss"], atol=1e-6)


def fetched_ahead_worker(counts):
    """Rank 0 leaves a pass after it has asked for a batch that nobody wants."""
    own = tf.data.Dataset.range(counts[ring.rank()]).batch(1).filter(everything)
    joined = ring.data.join(own)
    left = iter(joined.prefetch(1) if ring.rank() == 0 else joined)
    next(left)
    return [sum(1 for _ in joined) for _ in range(2)]


@pytest.mark.parametrize("counts", variants([[5, 3]], [[3, 5], [4, 4]]))
def test_a_batch_fetched_ahead_is_of_no_other_pass(rank_pool, counts):
    worker = functools.partial(fetched_ahead_worker, counts)

    assert rank_pool(2).run(worker) == [[max(counts)] * 2] * 2


def endless_worker():
    dataset = training.dataset().batch(training.BATCH)
    if ring.rank() == 1:
        dataset = dataset.repeat()
    with pytest.raises(ring.RankMismatchError) as caught:
        ring.data.join(dataset)
    return str(caught.value)


def test_data_that_end_on_some_ranks_only_are_refused(rank_pool):
    messages = rank_pool(2).run(endless_worker)

    assert messages[0] == messages[1]
    assert "ranks [1] never end, those of ranks [0] do" in messages[0]


def generator_worker(counts, per_execution, accumulation=None, compiled=False):
    x, y = training.arrays()

    def batches():
        for start in range(counts[ring.rank()]):
            yield x[start : start + 1], y[start : start + 1]

    model = training.compile_model(
        training.build(3),
        keras.optimizers.Adam(0.01, gradient_accumulation_steps=accumulation),
        steps_per_execution=per_execution,
        jit_compile=compiled,
    )
    if len(set(counts)) == 1:
        return fit(model, batches(), callbacks=callbacks())["loss"]
    with pytest.raises(ring.RankMismatchError) as caught:
        fit(model, batches(), callbacks=callbacks())
    return str(caught.value)


@pytest.mark.parametrize("per_execution", [1, 2])
@pytest.mark.slow
def test_generators_of_different_length_are_told(rank_pool, per_execution):
    worker = functools.partial(
        generator_worker, counts=[6, 4, 6], per_execution=per_execution
    )
    messages = rank_pool(3).run(worker)

    message = messages[0]
    assert messages == [message] * 3
    assert "after 4 steps of the epoch ranks [1] have run out of data" in message
    assert "ranks [0, 2] have more" in message


@pytest.mark.parametrize(
    "options",
    [
        {"per_execution": 2, "compiled": True},
        {"per_execution": 1, "compiled": True},
        # The last execution of one has a batch less.
        {"per_execution": 2},
        {"per_execution": 1, "accumulation": 2},
    ],
)
@pytest.mark.slow
def test_three_batches_and_five_are_told(rank_pool, options):
    worker = functools.partial(generator_worker, counts=[3, 5], **options)
    first, second = rank_pool(2).run(worker)

    assert first == second
    assert "after 3 steps of the epoch ranks [0] have run out of data" in first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("per_execution", "compiled"),
    [
        (2, False),
        (1, False),
        (1, True),
        (2, True),
    ],
)
def test_generators_of_equal_length_run(rank_pool, per_execution, compiled):
    worker = functools.partial(
        generator_worker, [5, 5], per_execution, compiled=compiled
    )
    first, second = rank_pool(2).run(worker)

    assert first == second and len(first) == 1


def filtered_worker():
    """Rank 0 keeps 8 of its 12 examples, rank 1 all."""
    model = training.compile_model(
        training.build(3), keras.optimizers.SGD(0.1), jit_compile=True
    )
    x, y = training.arrays()
    marks = np.arange(24) % 2 + np.arange(24) % 3
    dataset = tf.data.Dataset.from_tensor_slices((x[:24], y[:24], marks))
    part = ring.data.shard(dataset).filter(lambda _x, _y, mark: mark > 0)
    with pytest.raises(ring.RankMismatchError) as caught:
        fit(model, part.map(lambda x, y, _: (x, y)).batch(4), callbacks=callbacks())
    return str(caught.value)


@pytest.mark.slow
def test_a_filter_behind_a_shard_is_told(rank_pool):
    first, second = rank_pool(2).run(filtered_worker)

    assert first == second
    assert "after 2 steps of the epoch ranks [0] have run out of data" in first


def without_data_worker():
    """Moving statistics of a loop in which the first rank soon has no data."""
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    statistics = model.layers[0].moving_variance
    count = 2 * training.BATCH * (1 + 3 * ring.rank())
    data = ring.data.join(training.dataset(count).batch(training.BATCH))
    found = []
    for batch in data:
        with ring.data.weighted_step(batch, model=model) as ((x, _), examples):
            model(x, training=True)
        found.append((float(examples), statistics.numpy().tolist()))
    return found


def test_a_rank_without_data_keeps_its_moving_statistics(rank_pool):
    for found in rank_pool(2).run(without_data_worker):
        assert len(found) == 8
        for (_, before), (examples, after) in itertools.pairwise(found):
            assert (before == after) == (examples == 0)
