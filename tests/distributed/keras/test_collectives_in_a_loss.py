"""Losses over the rows of all ranks, where each has a different number of them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.log_texts import LogTexts

import ring_keras as ring

LIMIT = 1e-6

X = np.random.default_rng(1).normal(size=(16, 6)).astype(np.float32)
Y = np.random.default_rng(2).normal(size=(16, 3)).astype(np.float32)

# By step: the rows of rank 0, and those of rank 1.
STEPS = {
    "even": [(range(4), range(4, 8)), (range(8, 12), range(12, 16))],
    "uneven": [(range(4), range(4, 8)), (range(8, 10), range(10, 14))],
    "join": [(range(4), range(4, 8)), (range(0), range(8, 12))],
    "pad": [(range(4), range(4, 7))],
}


def own_batches(kind):
    """This rank's part of the steps."""
    if kind == "pad":
        data = tf.data.Dataset.from_tensor_slices((X[:7], Y[:7]))
        return ring.data.shard(data, remainder="pad").batch(4)
    own = [list(rows[ring.rank()]) for rows in STEPS[kind] if rows[ring.rank()]]
    data = tf.data.Dataset.from_generator(
        lambda: ((X[rows], Y[rows]) for rows in own),
        output_signature=(tf.TensorSpec([None, 6]), tf.TensorSpec([None, 3])),
    )
    data = data.apply(tf.data.experimental.assert_cardinality(len(own)))
    return ring.data.join(data) if kind == "join" else data


def by_allgather(outputs):
    return ring.allgather(outputs)


def by_allreduce(outputs):
    """As many rows as examples, the others' being zeros."""
    counts = ring.allgather(tf.shape(outputs)[:1])
    before = tf.reduce_sum(counts[: ring.rank()])
    after = tf.reduce_sum(counts[ring.rank() + 1 :])
    return ring.allreduce(tf.pad(outputs, [[before, after], [0, 0]]), op=ring.Sum)


def by_grouped_allreduce(outputs):
    counts = ring.allgather(tf.shape(outputs)[:1])
    before = tf.reduce_sum(counts[: ring.rank()])
    after = tf.reduce_sum(counts[ring.rank() + 1 :])
    padded = tf.pad(outputs, [[before, after], [0, 0]])
    return ring.grouped_allreduce([padded, 2.0 * padded], op=ring.Sum)[0]


def by_alltoall(outputs):
    """Each rank gets all rows of each."""
    rows = tf.shape(outputs)[0]
    sent = tf.tile(outputs, [ring.size(), 1])
    return ring.alltoall(sent, splits=tf.fill([ring.size()], rows))[0]


def by_broadcast(outputs):
    """The rows of each rank, one rank after the other."""
    counts = ring.allgather(tf.shape(outputs)[:1])
    parts = []
    for rank in range(ring.size()):
        others = tf.zeros([counts[rank], 3]) * outputs[:1]  # So all have its gradient.
        rows = outputs if rank == ring.rank() else others
        parts.append(ring.broadcast(rows, rank))
    return tf.concat(parts, 0)


def compared(outputs, everyone, targets):
    """Each example's own loss, and what it has to do with all others."""
    own = tf.reduce_mean(tf.square(outputs - targets), -1)
    return own + tf.reduce_mean(tf.tanh(outputs @ tf.transpose(everyone)), -1)


def build(optimizer, gather, **arguments):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(
        optimizer,
        lambda targets, outputs: compared(outputs, gather(outputs), targets),
        **{"jit_compile": False, **arguments},
    )
    return model


def alone(kind, fits):
    """The weights of one process on the same steps."""
    model = build(keras.optimizers.SGD(0.5), tf.identity)
    for _ in range(fits):
        for of_first, of_second in STEPS[kind]:
            rows = [*of_first, *of_second]
            model.train_on_batch(X[rows], Y[rows])
    return model.get_weights()


def fit_worker(kind, gather, eagerly):
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.5))
    model = build(optimizer, gather, run_eagerly=eagerly)
    for _ in range(2):
        model.fit(own_batches(kind), epochs=1, shuffle=False, verbose=0)
        model.make_train_function(force=True)  # It is traced again.
    return model.get_weights()


@pytest.mark.parametrize("eagerly", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind",
    [
        "join",
        "uneven",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("even", "pad")),
    ],
)
def test_rows_of_all_ranks_are_gathered_in_the_loss(rank_pool, kind, eagerly):
    results = rank_pool(2).run(fit_worker, args=(kind, by_allgather, eagerly))

    for weights in results:
        assert training.largest_difference(weights, alone(kind, fits=2)) <= LIMIT


@pytest.mark.parametrize(
    ("kind", "gather"),
    [
        ("uneven", by_allreduce),
        ("uneven", by_alltoall),
        pytest.param("uneven", by_grouped_allreduce, marks=pytest.mark.slow),
        pytest.param("uneven", by_broadcast, marks=pytest.mark.slow),
    ],
)
def test_other_collectives_in_the_loss_are_weighted_alike(rank_pool, kind, gather):
    results = rank_pool(2).run(fit_worker, args=(kind, gather, False))

    for weights in results:
        assert training.largest_difference(weights, alone(kind, fits=2)) <= LIMIT


def own_loop_worker():
    """The same with `weighted_step` and a tape."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.5))

    @tf.function
    def step(batch):
        with ring.data.weighted_step(batch, model=model) as ((x, y), _):
            with tf.GradientTape() as tape:
                outputs = model(x, training=True)
                loss = compared(outputs, ring.allgather(outputs), y)
                loss = tf.reduce_mean(loss)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

    for batch in own_batches("join"):
        step(batch)
    return model.get_weights()


def test_they_are_in_a_loop_of_ones_own(rank_pool):
    for weights in rank_pool(2).run(own_loop_worker):
        assert training.largest_difference(weights, alone("join", fits=1)) <= LIMIT


def summed_worker():
    """With a tape that adds up, for which all ranks count the same."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.05)

    @tf.function
    def step(batch):
        with ring.data.weighted_step(batch, model=model) as ((x, y), _):
            with tf.GradientTape() as tape:
                outputs = model(x, training=True)
                loss = compared(outputs, ring.allgather(outputs), y)
                loss = tf.reduce_sum(loss)
            tape = ring.DistributedGradientTape(tape, op=ring.Sum)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

    for batch in own_batches("join"):
        step(batch)
    return model.get_weights()


def summed_alone():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.05)
    for of_first, of_second in STEPS["join"]:
        rows = [*of_first, *of_second]
        with tf.GradientTape() as tape:
            outputs = model(X[rows], training=True)
            loss = tf.reduce_sum(compared(outputs, outputs, Y[rows]))
        optimizer.apply(
            tape.gradient(loss, model.trainable_variables), model.trainable_variables
        )
    return model.get_weights()


def test_sums_leave_out_who_has_no_batch(rank_pool):
    for weights in rank_pool(2).run(summed_worker):
        assert training.largest_difference(weights, summed_alone()) <= LIMIT


def of_other_ranks_worker():
    """The step counts among all ranks, and the optimizer's two are others."""
    two = ring.add_process_set([0, 1])
    try:
        return trained_by(two) if two.included() else ""
    finally:
        ring.remove_process_set(two)


def trained_by(two):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.5), process_set=two)
    optimizer.build(model.trainable_variables)
    x = tf.constant(X[: 2 + 2 * ring.rank()])
    with (
        ring.data.weighted_step((x, x[:, :3])) as ((x, y), _),
        tf.GradientTape() as tape,
    ):
        outputs = model(x, training=True)
        every = ring.allgather(outputs, process_set=two)
        loss = tf.reduce_mean(compared(outputs, every, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        with pytest.raises(ring.RingKerasError) as caught:
            optimizer.apply(gradients, model.trainable_variables)
    return str(caught.value)


def test_a_step_among_other_ranks_is_refused(rank_pool):
    for message in rank_pool(3).run(of_other_ranks_worker)[:2]:
        assert "[RK416] the optimizer has another process set" in message


def slices_worker():
    """Sparse gradients in Horovod's way: all ranks apply the same rows."""
    import ring_keras.horovod.tensorflow as hvd

    @tf.function
    def step(batch):
        with ring.data.weighted_step(batch) as ((x, _), _):
            slices = tf.IndexedSlices(x + 1.0, tf.range(tf.shape(x)[0]), [16, 6])
            return tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum))

    return [step(batch).numpy().tobytes() for batch in own_batches("join")]


def test_slices_are_the_same_where_a_rank_has_no_batch(rank_pool):
    first, second = rank_pool(2).run(slices_worker)

    assert first == second


def refused_worker(gather):
    model = build(ring.DistributedOptimizer(keras.optimizers.SGD(0.5)), gather)
    with pytest.raises(ring.RingKerasError) as e:
        model.fit(own_batches("join"), epochs=1, verbose=0)
    return str(e.value)


def by_average(outputs):
    return ring.allreduce(tf.reduce_mean(outputs, 0, keepdims=True))


def test_what_needs_examples_of_all_ranks_is_refused_where_one_has_none(rank_pool):
    for message in rank_pool(2).run(refused_worker, args=(by_average,), timeout_s=60):
        assert "[RK414] allreduce allreduce/gradient is in a loss" in message


def compiled_worker():
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.5))
    model = build(optimizer, by_average, jit_compile=True)
    with pytest.raises(ring.RingKerasError) as caught:
        model.fit(own_batches("join"), epochs=1, verbose=0)
    return str(caught.value)


def test_xla_cannot_tell_so_it_is_refused_before(rank_pool):
    for message in rank_pool(2).run(compiled_worker, timeout_s=60):
        assert "RK414" in message and "jit_compile=False" in message


def by_a_function(outputs):
    return gather_in_a_function(outputs)


@tf.function
def gather_in_a_function(outputs):
    return ring.allgather(outputs)


def function_worker():
    with LogTexts() as texts:
        weights = fit_worker("even", by_a_function, False)
    return weights, [text for text in texts if "RK415" in text]


def test_a_function_that_the_loss_calls_counts_ranks_alike(rank_pool):
    for weights, told in rank_pool(2).run(function_worker):
        assert training.largest_difference(weights, alone("even", fits=2)) <= LIMIT
        assert len(told) == 1
