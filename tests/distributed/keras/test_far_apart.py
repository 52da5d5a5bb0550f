"""Ranks that train apart, and meet every so many updates."""

from __future__ import annotations

import functools
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import run_ranks, training
from support.far_apart import (
    BATCH,
    INNER,
    OUTER,
    Reference,
    Watcher,
    batches_of,
    rank_dataset,
    step_of,
)

import ring_keras as ring
from ring_keras import _libraries


def fit_worker(inner, outer, sync_every, steps, epochs, options=(), **compiled):
    """Trains in `fit`; returns the weights, and how many meetings there were."""
    ring.init()
    make, _, _ = OUTER[outer]
    model = training.build(ring.rank())  # All take the first rank's.
    if ring.rank() == 0:
        model = training.build(1)
    optimizer = make(INNER[inner](), sync_every=sync_every, **dict(options))
    model.compile(optimizer, "binary_crossentropy", **compiled)
    model.fit(rank_dataset(steps), epochs=epochs, verbose=0, shuffle=False)
    if compiled.get("jit_compile") and _libraries.has_xla_kernels():
        assert model.jit_compile, "XLA was turned off"
    return model.get_weights(), int(optimizer.outer_optimizer.iterations)


def require_reference(
    results,
    size,
    inner,
    outer,
    sync_every,
    steps,
    epochs,
    wire="float32",
    overlap=0,
    hosts=(),
):
    """The ranks have one model, bit for bit, and it is that of the algorithm."""
    all_weights, meetings = zip(*results, strict=True)
    assert len({training.as_bytes(weights) for weights in all_weights}) == 1
    batches = sync_every * (2 if inner == "accumulation" else 1)
    assert meetings == (-(-steps // batches) * epochs,) * size
    reference = Reference(
        size, inner, outer, batches, wire, overlap=overlap, hosts=hosts
    )
    for _ in range(epochs):
        reference.epoch(steps)
    assert training.largest_difference(all_weights[0], reference.common) < 1e-6


@pytest.mark.parametrize(
    ("size", "inner", "outer", "sync_every", "compiled"),
    [
        pytest.param(2, "accumulation", "average", 2, {}, marks=pytest.mark.slow),
        pytest.param(
            *(2, "adam", "diloco", 3, {"steps_per_execution": 5}),
            marks=pytest.mark.slow,
        ),
        (2, "sgd", "diloco", 3, {}),
        pytest.param(
            2, "sgd", "diloco", 3, {"jit_compile": True}, marks=pytest.mark.slow
        ),
        pytest.param(2, "sgd", "average", 3, {}, marks=pytest.mark.slow),
        pytest.param(3, "adam", "diloco", 3, {}, marks=pytest.mark.slow),
        pytest.param(
            2, "adam", "diloco", 3, {"jit_compile": True}, marks=pytest.mark.slow
        ),
        pytest.param(2, "adam", "diloco", 4, {}, marks=pytest.mark.slow),
        pytest.param(2, "loss_scaled", "diloco", 3, {}, marks=pytest.mark.slow),
        pytest.param(
            3, "sgd", "diloco", 4, {"run_eagerly": True}, marks=pytest.mark.slow
        ),
    ],
)
def test_fit_is_the_algorithm(rank_pool, size, inner, outer, sync_every, compiled):
    """Epochs of 8 steps end between two meetings, and the ranks meet there, too."""
    worker = functools.partial(fit_worker, **compiled)
    results = rank_pool(size).run(worker, args=(inner, outer, sync_every, 8, 2))

    require_reference(results, size, inner, outer, sync_every, 8, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "wire", "overlap", "compiled"),
    [
        ("adam", "int8", 0, {}),
        ("sgd", "int8", 2, {}),
        ("sgd", "float32", 0, {"jit_compile": True}),
        ("accumulation", "float32", 0, {}),
        ("loss_scaled", "top-k", 0, {}),
        ("sgd", "int8", 0, {"run_eagerly": True}),
        ("sgd", "int8", 2, {"jit_compile": True}),
        ("sgd", "top-k", 1, {}),
        ("sgd", "float32", 2, {}),
    ],
)
def test_hosts_that_train_apart_are_ranks_with_larger_batches(
    inner, wire, overlap, compiled
):
    """One host has two ranks, which stay equal between meetings, and one has one."""
    worker = functools.partial(fit_worker, **compiled)
    options = (("apart", "hosts"), ("wire", wire), ("overlap_steps", overlap))
    results = run_ranks(
        worker,
        3,
        args=(inner, "diloco", 3, 8, 2, options),
        env=[{"RING_KERAS_HOST_NAME": host} for host in ("a", "a", "b")],
    )

    require_reference(
        *(results, 3, inner, "diloco", 3, 8, 2), wire, overlap, hosts=(0, 0, 1)
    )


def synchronous_worker():
    """Weights of one update per meeting, and of averaged gradients."""
    weights = []
    for options in ({"sync_every": 1}, {}):
        model = training.build(1)
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
        model.compile(optimizer, "binary_crossentropy")
        model.fit(rank_dataset(8), epochs=2, verbose=0, shuffle=False)
        weights.append(model.get_weights())
    return training.largest_difference(*weights)


def test_one_update_per_meeting_is_synchronous_sgd(rank_pool):
    assert max(rank_pool(2).run(synchronous_worker)) < 1e-6


def loop_worker(kind):
    """The weights after each step of a loop, as bytes, and after a last meeting."""
    model = training.build(1)
    model.compile(ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=3))
    step = step_of(model)
    if kind != "eager":
        step = tf.function(
            step,
            jit_compile=kind == "jit",
            input_signature=[
                tf.TensorSpec((BATCH, 6), tf.float32),
                tf.TensorSpec((BATCH, 1), tf.float32),
            ],
        )
    after = []
    for x, y in batches_of(ring.rank(), ring.size(), 12)[:-1]:
        step(tf.constant(x), tf.constant(y))
        after.append(training.as_bytes(model.get_weights()))
    assert model.optimizer.is_apart
    model.optimizer.meet()
    assert not model.optimizer.is_apart
    met = model.get_weights()
    model.optimizer.meet()
    assert training.as_bytes(model.get_weights()) == training.as_bytes(met)
    return after, met


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "eager", "jit"])
def test_ranks_are_equal_where_they_have_met_and_nowhere_else(rank_pool, kind):
    results = rank_pool(2).run(loop_worker, args=(kind,))

    after, met = zip(*results, strict=True)
    equal = [first == second for first, second in zip(*after, strict=True)]
    assert [n for n, same in enumerate(equal, 1) if same] == [3, 6, 9]
    assert training.as_bytes(met[0]) == training.as_bytes(met[1])
    reference = Reference(2, "sgd", "diloco", 3)
    reference.loop(0, 11)
    reference.meet()
    assert training.largest_difference(met[0], reference.common) < 1e-6


class OwnStep(keras.Model):
    """Applies gradients in its own `train_step`, of a sum that it computes."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                keras.losses.binary_crossentropy(y, self(x, training=True))
            )
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def own_step_worker():
    """A custom step; and a compiled loss that adds up its batch."""
    weights = []
    for cls in (OwnStep, None):
        model = training.build(1, cls)
        optimizer = ring.DiLoCo(keras.optimizers.SGD(0.01), sync_every=3)
        model.compile(optimizer, keras.losses.BinaryCrossentropy(reduction="sum"))
        model.fit(rank_dataset(7), verbose=0, shuffle=False)
        weights.append(model.get_weights())
    return weights


@pytest.mark.slow
def test_custom_steps_and_summed_losses_are_those_of_one_rank(rank_pool):
    results = rank_pool(2).run(own_step_worker)

    own, plain = results[0]
    assert training.as_bytes(own) == training.as_bytes(results[1][0])
    assert training.as_bytes(plain) == training.as_bytes(results[1][1])
    assert training.largest_difference(own, plain) < 1e-6


def epochs_worker():
    """What validation and callbacks see, and what the metrics are of."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.Adam(0.01), sync_every=3)
    training.compile_model(model, optimizer)
    watcher = Watcher()
    x, y = training.arrays()
    part = slice(ring.rank(), None, ring.size())
    history = model.fit(
        rank_dataset(7),
        epochs=2,
        verbose=0,
        validation_data=(x[part], y[part]),
        callbacks=[watcher],
    ).history
    alone = dict(
        zip(("loss", "accuracy", "rms"), model.evaluate(x, y, verbose=0), strict=True)
    )
    return watcher.seen, history, alone


def test_validation_and_callbacks_see_common_weights(rank_pool):
    (seen, history, alone), second = rank_pool(2).run(epochs_worker)

    assert len(seen) == 4
    assert (seen, history) == second[:2]
    for key, value in alone.items():
        assert history[f"val_{key}"][-1] == pytest.approx(value, abs=1e-5)


def checked_worker(options):
    """Comparisons of weights do not take ranks that are apart for ones that differ."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.Adam(0.01), sync_every=3, **options)
    model.compile(optimizer, "binary_crossentropy")
    model.fit(rank_dataset(8), epochs=2, verbose=0)
    if ring.rank() == 1:
        optimizer.outer_optimizer.variables[-1].assign_add([1.0])
        model.optimizer.inner_optimizer.learning_rate = 0.02
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"wire": "int8"},
        {"overlap_steps": 2},
        {"overlap_steps": 2, "wire": "int8"},
    ],
)
def test_checks_of_equal_weights_know_of_it(rank_pool, options):
    checked = rank_pool(2, env={"RING_KERAS_CHECK_STEPS": "2"})

    assert checked.run(checked_worker, args=(options,)) == [True, True]


COMPILED = [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}]


def joined_worker(compiled, counts=(7, 5), apart="ranks", inner="adam", epochs=1):
    """Ranks whose data end within a window."""
    ring.init()
    model = training.build(1)
    optimizer = ring.DiLoCo(INNER[inner](), sync_every=4, apart=apart)
    model.compile(optimizer, "binary_crossentropy", **compiled)
    batches = batches_of(ring.rank(), ring.size(), 8)[: counts[ring.rank()]]
    data = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            tf.TensorSpec((None, 6), tf.float32),
            tf.TensorSpec((None, 1), tf.float32),
        ),
    )
    model.fit(ring.data.join(data), epochs=epochs, verbose=0, shuffle=False)
    return model.get_weights()


@pytest.mark.slow
def test_gradients_that_a_rank_has_added_up_stay_with_it(rank_pool):
    """Of a rank whose data end between two updates: for its first one after that."""
    worker = functools.partial(joined_worker, inner="accumulation", epochs=2)
    first, second = rank_pool(2).run(worker, args=({},))

    assert training.as_bytes(first) == training.as_bytes(second)
    reference = Reference(2, "accumulation", "diloco", 8)
    for _ in range(2):
        reference.loop(0, 5)
        reference.alone(0, 5, 7)
        reference.meet()
    assert training.largest_difference(first, reference.common) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("compiled", COMPILED)
def test_a_rank_without_data_waits_for_the_meeting(rank_pool, compiled):
    first, second = rank_pool(2).run(joined_worker, args=(compiled,))

    assert training.as_bytes(first) == training.as_bytes(second)
    reference = Reference(2, "adam", "diloco", 4)
    reference.loop(0, 5)
    reference.alone(0, 5, 7)
    reference.meet()
    assert training.largest_difference(first, reference.common) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("compiled", COMPILED)
def test_a_host_goes_on_with_the_data_of_some_of_its_ranks(compiled):
    counts = (5, 3, 7)
    results = run_ranks(
        joined_worker,
        3,
        args=(compiled, counts, "hosts"),
        env=[{"RING_KERAS_HOST_NAME": host} for host in ("a", "a", "b")],
    )

    assert len({training.as_bytes(weights) for weights in results}) == 1
    reference = Reference(3, "adam", "diloco", 4, hosts=(0, 0, 1))
    reference.train({r: batches_of(r, 3, 8)[:count] for r, count in enumerate(counts)})
    reference.alone(2, 5, 7)
    reference.meet()
    assert training.largest_difference(results[0], reference.common) < 1e-6


def larger_batches_worker(sizes):
    """Ranks whose batches differ, as many of each, of data that have no end."""
    model = training.build(1)
    model.compile(ring.DiLoCo(INNER["sgd"](), sync_every=3), "binary_crossentropy")
    data = ring.data.shard(tf.data.Dataset.from_tensor_slices(training.arrays()))
    data = data.repeat().batch(sizes[ring.rank()])
    model.fit(data, steps_per_epoch=7, epochs=2, verbose=0)
    return model.get_weights()


@pytest.mark.slow
def test_a_faster_rank_may_have_larger_batches(rank_pool):
    """It counts by its examples."""
    sizes = (4, 12)
    first, second = rank_pool(2).run(larger_batches_worker, args=(sizes,))

    assert training.as_bytes(first) == training.as_bytes(second)
    reference = Reference(2, "sgd", "diloco", 3)
    batches = {}
    for rank, size in enumerate(sizes):
        # Data without an end go on where the epoch before has stopped.
        x, y = (np.tile(a[rank::2], (14, 1)) for a in training.arrays())
        parts = [slice(size * n, size * (n + 1)) for n in range(14)]
        batches[rank] = [(x[part], y[part]) for part in parts]
    for epoch in range(2):
        part = slice(7 * epoch, 7 * (epoch + 1))
        reference.train({rank: of_rank[part] for rank, of_rank in batches.items()})
        reference.meet()
    assert training.largest_difference(first, reference.common) < 1e-6


def host_then_alone_worker():
    """Trains among hosts, and then in a job of its own."""
    ring.init()
    model = training.build(1)
    model.compile(ring.DiLoCo("sgd", sync_every=3, apart="hosts"), "mse")
    model.fit(rank_dataset(4), verbose=0)
    ring.shutdown()
    for name in [name for name in os.environ if name.startswith("RING_KERAS_")]:
        del os.environ[name]
    ring.init()
    model.fit(rank_dataset(4), verbose=0)
    return ring.size()


@pytest.mark.slow
def test_a_host_of_an_earlier_job_is_forgotten():
    hosts = [{"RING_KERAS_HOST_NAME": host} for host in ("a", "a", "b")]

    assert run_ranks(host_then_alone_worker, 3, env=hosts) == [1, 1, 1]


class TwoOptimizers(keras.Model):
    """Keeps one for each of its layers."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for optimizer, layer in zip(self.both, self.layers[-2:], strict=True):
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def several_worker(keeps_inner, jit_compile):
    """Two optimizers of one model that meet at different steps, in two `fit`s."""
    model = training.build(1, TwoOptimizers)
    first = ring.DiLoCo(keras.optimizers.Adam(0.01), sync_every=2)
    second = ring.DistributedOptimizer(keras.optimizers.SGD(0.1), sync_every=3)
    model.both = [first, second]
    if keeps_inner:  # `fit` finds it there, and must not make it distributed.
        model.inner = [one.inner_optimizer for one in model.both]
    model.compile("sgd", "binary_crossentropy", jit_compile=jit_compile)
    for _ in range(2):
        model.fit(rank_dataset(8), verbose=0)
    meetings = [int(one.outer_optimizer.iterations) for one in model.both]
    return meetings, training.as_bytes(model.get_weights())


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_several_optimizers_meet_each_by_itself(rank_pool, jit_compile):
    pool = rank_pool(2)
    first, second = pool.run(several_worker, args=(False, jit_compile))

    assert first == second
    assert first[0] == [2 * 4, 2 * 3]
    assert pool.run(several_worker, args=(True, jit_compile)) == [first] * 2


def frozen_worker():
    """A layer that is frozen after an epoch, whose momentum is not 0 then."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=2)
    model.compile(optimizer, "binary_crossentropy")
    model.fit(rank_dataset(4), verbose=0)
    model.layers[-2].trainable = False
    frozen = [weight.numpy() for weight in model.layers[-2].weights]
    others = model.layers[-1].weights[0].numpy()
    model.compile(optimizer, "binary_crossentropy")
    model.fit(rank_dataset(4), verbose=0)
    for weight, before in zip(model.layers[-2].weights, frozen, strict=True):
        np.testing.assert_array_equal(weight.numpy(), before)
    assert (model.layers[-1].weights[0].numpy() != others).any()
    return training.as_bytes(model.get_weights())


@pytest.mark.slow
def test_meetings_leave_frozen_layers_alone(rank_pool):
    first, second = rank_pool(2).run(frozen_worker)

    assert first == second


def sixteen_bits_worker(dtype, wire):
    """Weights of 16 bits, and more examples in a window than those can count."""
    model = training.build(1, dtype=dtype)
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=30, wire=wire)
    model.compile(optimizer, "binary_crossentropy", auto_scale_loss=False)
    x, y = (np.tile(a[ring.rank() :: 2], (200, 1)) for a in training.arrays())
    history = model.fit(x, y, batch_size=4000, epochs=2, verbose=0).history["loss"]
    assert history[1] < history[0]
    assert model.layers[-2].weights[0].dtype == dtype
    return training.as_bytes([w.astype(np.float32) for w in model.get_weights()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "wire"),
    [
        ("float16", "float32"),
        ("bfloat16", "int8"),
    ],
)
def test_weights_of_16_bits_meet(rank_pool, dtype, wire):
    first, second = rank_pool(2).run(sixteen_bits_worker, args=(dtype, wire))

    assert first == second


def mixed_precision_worker():
    """float16 with loss scaling inside, and batch normalization."""
    model = training.assemble(
        1,
        lambda: [
            keras.layers.Dense(8, dtype="mixed_float16"),
            keras.layers.BatchNormalization(dtype="mixed_float16"),
            keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
        ],
        None,
    )
    model.compile(
        ring.DiLoCo(INNER["loss_scaled"](), sync_every=3),
        "binary_crossentropy",
        auto_scale_loss=False,
    )
    history = model.fit(rank_dataset(8), epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]
    return training.as_bytes(model.get_weights())


@pytest.mark.slow
@pytest.mark.parametrize("env", [{}, {"RING_KERAS_CHECK_REDUCTIONS": "1"}])
def test_loss_scaling_inside(rank_pool, env):
    first, second = rank_pool(2, env=env).run(mixed_precision_worker)

    assert first == second
