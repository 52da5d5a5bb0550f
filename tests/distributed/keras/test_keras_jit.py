"""Training steps that XLA compiles: the same as one process that compiles none."""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.log_texts import LogTexts
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import _libraries

pytestmark = pytest.mark.skipif(
    not _libraries.has_xla_kernels(), reason="needs TensorFlow 2.20 or newer"
)

STEPS = 12
LIMIT = 1e-6


def callbacks() -> list[keras.callbacks.Callback]:
    return [
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
    ]


class TapeStep(keras.Model):
    """Averages gradients itself and assigns the weights."""

    def train_step(self, data):
        x, y = data
        tape = tf.GradientTape()
        if getattr(self, "distributed", True):
            tape = ring.DistributedGradientTape(tape)
        with tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        variables = self.trainable_variables
        for gradient, variable in zip(
            tape.gradient(loss, variables), variables, strict=True
        ):
            variable.assign_sub(0.1 * gradient)
        return self.compute_metrics(x, y, y_pred)


CASES = {
    "adam": {},
    "adamw_global_clipnorm": {},
    "accumulation": {},
    "steps_per_execution": {"steps_per_execution": 5},
    "tape": {},
}


FEW = ["accumulation"]
MORE = [case for case in CASES if case not in FEW]


def fit_worker(case):
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.steps_of(STEPS, size))  # The last is uneven.
    make_optimizer = training.OPTIMIZERS.get(case, training.OPTIMIZERS["adam"])
    cls = TapeStep if case == "tape" else None

    model = training.build(1 + rank, cls)
    optimizer = make_optimizer()
    if case != "tape":
        optimizer = ring.DistributedOptimizer(optimizer)
    training.compile_model(model, optimizer, jit_compile=True, **CASES[case])
    part = ring.data.shard(data, remainder="keep")
    history = training.fit(model, part, training.BATCH, callbacks=callbacks())
    assert model.jit_compile, "XLA was turned off"
    model.evaluate(part.batch(3), verbose=0)
    assert len(model.predict(part.batch(3), verbose=0)) == len(list(part))

    weights = training.as_bytes(model.get_weights())
    if rank != 0:  # One comparison is enough.
        return 0.0, 0.0, weights
    alone = training.build(1, cls)
    alone.distributed = False
    training.compile_model(alone, make_optimizer(), jit_compile=False)
    alone_history = training.fit(alone, data, training.BATCH * size)
    return (
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.history_difference(history, alone_history),
        weights,
    )


def check(results) -> None:
    for difference, history_difference, weights in results:
        assert difference <= LIMIT
        assert history_difference <= LIMIT
        assert weights == results[0][2], "ranks differ"


@pytest.mark.parametrize(
    ("size", "case"),
    [
        *((2, case) for case in FEW),
        *(pytest.param(2, case, marks=pytest.mark.slow) for case in MORE),
        *(pytest.param(3, case, marks=pytest.mark.slow) for case in CASES),
    ],
)
def test_fit_matches_one_process(rank_pool, size, case):
    check(rank_pool(size).run(fit_worker, args=(case,), timeout_s=120))


def padded_worker(per_execution):
    size, rank = ring.size(), ring.rank()
    count = training.BATCH * size * 3 + 1  # All but one rank get a row of padding.
    model = training.build(1 + rank)
    training.compile_model(
        model,
        ring.DistributedOptimizer(training.OPTIMIZERS["sgd"]()),
        jit_compile=True,
        steps_per_execution=per_execution,
    )
    part = ring.data.shard(training.dataset(count), remainder="pad")
    history = training.fit(model, part, training.BATCH, epochs=2, callbacks=callbacks())
    assert model.jit_compile, "XLA was turned off"
    weights = training.as_bytes(model.get_weights())
    if rank != 0:  # One comparison is enough.
        return 0.0, 0.0, weights
    alone = training.build(1)
    training.compile_model(alone, training.OPTIMIZERS["sgd"](), jit_compile=False)
    alone_history = training.fit(
        alone, training.dataset(count), training.BATCH * size, epochs=2
    )
    return (
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.history_difference(history, alone_history),
        weights,
    )


@pytest.mark.slow
@pytest.mark.parametrize("per_execution", [1, 3])
def test_padding_counts_for_nothing(rank_pool, per_execution):
    check(rank_pool(2).run(padded_worker, args=(per_execution,)))


def embedding_worker():
    """Slices of gradients, not as many on each rank, and weights of examples."""
    size, rank = ring.size(), ring.rank()
    generator = np.random.default_rng(3)
    words = generator.integers(0, 30, size=(61, 5))
    labels = generator.integers(0, 2, size=(61, 1)).astype(np.float32)
    weights = generator.uniform(0, 3, 61).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((words, labels, weights))
    loss = keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")

    def build(seed):
        keras.utils.set_random_seed(seed)
        return keras.Sequential(
            [
                keras.layers.Embedding(30, 4),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )

    model = build(1 + rank)
    optimizer = ring.DistributedOptimizer(training.OPTIMIZERS["sgd"]())
    model.compile(optimizer, loss, jit_compile=True)
    part = ring.data.shard(data, remainder="keep")
    training.fit(model, part, 8, callbacks=callbacks())
    alone = build(1)
    alone.compile(training.OPTIMIZERS["sgd"](), loss, jit_compile=False)
    training.fit(alone, data, 8 * size)
    difference = training.largest_difference(model.get_weights(), alone.get_weights())
    return difference, 0.0, training.as_bytes(model.get_weights())


@pytest.mark.slow
def test_an_embedding_matches_one_process(rank_pool):
    check(rank_pool(2).run(embedding_worker))


SLICES = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipnorm": lambda: keras.optimizers.SGD(0.5, clipnorm=0.01),
    "loss_scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=4.0
    ),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
}


def slices_worker(names, varies):
    """Optimizers that look at each slice; batches of one size on each rank, or not."""
    steps, sizes = 4, [8, 6, 7][: ring.size()]
    count = steps * sum(sizes)
    generator = np.random.default_rng(3)
    words = generator.integers(0, 30, size=(count, 5))
    labels = generator.integers(0, 2, size=(count, 1)).astype(np.float32)
    first = sum(sizes[: ring.rank()])
    of_steps = np.arange(count).reshape(steps, -1)
    own = of_steps[:, first : first + sizes[ring.rank()]].ravel()

    def fit(seed, optimizer, rows, batch, jit_compile):
        keras.utils.set_random_seed(seed)
        layers = [
            keras.layers.Embedding(30, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
        model = keras.Sequential(layers)
        model.compile(optimizer, "mse", jit_compile=jit_compile)
        data = tf.data.Dataset.from_tensor_slices((words[rows], labels[rows]))
        data = data.batch(batch, drop_remainder=not varies)
        model.fit(data, epochs=2, verbose=0)
        return model.get_weights()

    results = []
    for name in names:
        with LogTexts() as texts:
            optimizer = ring.DistributedOptimizer(SLICES[name]())
            got = fit(1 + ring.rank(), optimizer, own, sizes[ring.rank()], True)
        told = [text for text in texts if "RK606" in text]
        expected = fit(1, SLICES[name](), np.arange(count), sum(sizes), False)
        difference = training.largest_difference(got, expected)
        results.append((name, difference, training.as_bytes(got), told))
    return results


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (2, ["adam"]),
        (2, ["clipnorm", "loss_scaled"]),
        (2, ["accumulation"]),
        (3, [*SLICES]),
    ],
)
@pytest.mark.slow
def test_slices_are_gathered_where_their_number_is_known(rank_pool, size, names):
    results = rank_pool(size).run(slices_worker, args=(names, False), timeout_s=200)

    for of_optimizer in zip(*results, strict=True):
        for name, difference, weights, told in of_optimizer:
            assert difference <= LIMIT, name
            assert weights == of_optimizer[0][2], f"ranks differ: {name}"
            assert told == [], name


@pytest.mark.slow
def test_slices_of_unknown_number_are_made_dense_and_that_is_said(rank_pool):
    first, second = rank_pool(2).run(slices_worker, args=(["adam"], True))

    for (_, _, weights, _), (_, _, others, _) in zip(first, second, strict=True):
        assert weights == others
    (text,) = first[0][3]
    assert "the sparse gradient of 'sequential" in text
    assert "drop_remainder=True" in text
    assert second[0][3] == []


def overflow_worker():
    """mixed_float16, where one rank's third batch overflows."""
    size, rank = ring.size(), ring.rank()
    x, y = (array[: 6 * training.BATCH * size].copy() for array in training.arrays())
    x[2 * training.BATCH * size + 1] = np.inf  # On rank 1.
    data = tf.data.Dataset.from_tensor_slices((x, y))
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = training.build(1 + rank)
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
        training.compile_model(model, optimizer, jit_compile=True)
        training.fit(
            model, ring.data.shard(data), training.BATCH, callbacks=callbacks()
        )
    finally:
        keras.config.set_dtype_policy("float32")
    return (
        int(model.optimizer.iterations),
        float(model.optimizer.dynamic_scale.numpy()),
        training.as_bytes(model.get_weights()),
    )


@pytest.mark.slow
def test_an_overflow_on_one_rank_skips_the_step_on_all(rank_pool):
    first, second = rank_pool(2).run(overflow_worker)

    assert first == second
    assert first[:2] == (5, 2.0**14)


def loop_worker():
    """A training loop of one's own, compiled as a whole."""
    size, rank = ring.size(), ring.rank()
    x, y = training.arrays()
    batch = training.BATCH * size
    weights = []
    for distributed in (True, False):
        model = training.build(1 + rank if distributed else 1)
        model.build((None, 6))
        optimizer = training.OPTIMIZERS["adam"]()
        optimizer.build(model.trainable_variables)
        if distributed:
            ring.broadcast_variables([*model.weights, *optimizer.variables])

        @tf.function(jit_compile=distributed)
        def step(x, y, model=model, optimizer=optimizer, distributed=distributed):
            tape = tf.GradientTape()
            with ring.DistributedGradientTape(tape) if distributed else tape as tape:
                y_pred = model(x, training=True)
                loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, y_pred))
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        for start in range(0, STEPS * batch, batch):
            rows = slice(start, start + batch)
            own = slice(rank, None, size) if distributed else slice(None)
            step(tf.constant(x[rows][own]), tf.constant(y[rows][own]))
        weights.append(model.get_weights())
    difference = training.largest_difference(*weights)
    return difference, 0.0, training.as_bytes(weights[0])


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_compiled_loop_matches_one_process(rank_pool, size):
    check(rank_pool(size).run(loop_worker))


def alone_worker():
    model = training.build(1)
    training.compile_model(model, keras.optimizers.SGD(0.1), jit_compile=True)
    with pytest.raises(ring.RingKerasError, match="reduced with no other rank"):
        training.fit(
            model,
            training.dataset(8),
            4,
            callbacks=[ring.callbacks.MetricAverage()],
        )


def test_a_step_that_communicates_nothing_is_refused(rank_pool):
    rank_pool(2).run(alone_worker)


class Dies(keras.callbacks.Callback):
    """Kills rank 1 after its second step."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and ring.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def lost_peer_worker():
    ring.init()
    model = training.build(1)
    training.compile_model(model, ring.DistributedOptimizer("sgd"), jit_compile=True)
    training.fit(
        model,
        ring.data.shard(training.dataset(64)),
        4,
        callbacks=[ring.callbacks.BroadcastGlobalVariables(), Dies()],
    )


@pytest.mark.slow
def test_a_lost_rank_ends_fit_with_its_name():
    first, second = run_ranks(lost_peer_worker, 2, check=False, timeout_s=90)

    assert second.signal == signal.SIGKILL
    assert first.exception_type == "PeerLostError", first.describe()
    assert "rank 1" in first.message
    assert str(second.pid) in first.message
