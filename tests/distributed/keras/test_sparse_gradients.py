"""Sparse gradients: words that occur twice, and other numbers of them by rank."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.python_lock import make_pipes, while_python_is_held_up

import ring_keras as ring
from ring_keras.optimizers.sparse_choice import SparseGradient, choose_dense

LIMIT = 1e-6
WORDS = 30

OPTIMIZERS = {
    "sgd": functools.partial(keras.optimizers.SGD, 0.1),
    "momentum": functools.partial(keras.optimizers.SGD, 0.1, momentum=0.9),
    "clipnorm": functools.partial(keras.optimizers.SGD, 0.1, clipnorm=0.05),
    "adam": functools.partial(keras.optimizers.Adam, 0.01),
    "adam_clipnorm": functools.partial(keras.optimizers.Adam, 0.01, clipnorm=0.05),
    "adamw_global_clipnorm": functools.partial(
        keras.optimizers.AdamW, 0.01, global_clipnorm=0.05
    ),
    "rmsprop": functools.partial(keras.optimizers.RMSprop, 0.01),
    "adam_accumulated": functools.partial(
        keras.optimizers.Adam, 0.01, gradient_accumulation_steps=2
    ),
}


def dataset() -> tf.data.Dataset:
    generator = np.random.default_rng(3)
    words = generator.integers(0, WORDS, size=(61, 5))
    labels = generator.integers(0, 2, size=(61, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((words, labels))


def build(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Embedding(WORDS, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


class DenseGradients:
    """Makes an optimizer of one process get what `sparse_as_dense` gives."""

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._apply = optimizer.apply
        vars(optimizer)["apply"] = self

    def __call__(self, grads, trainable_variables=None):
        self._apply([tf.convert_to_tensor(g) for g in grads], trainable_variables)


def embedding_worker(names, sparse_as_dense):
    """For each optimizer: the largest difference, and the weights."""
    results = []
    for name in names:
        size, rank = ring.size(), ring.rank()
        model = build(1 + rank)
        optimizer = ring.DistributedOptimizer(
            OPTIMIZERS[name](), sparse_as_dense=sparse_as_dense
        )
        training.compile_model(model, optimizer)
        training.fit(
            model,
            ring.data.shard(dataset(), remainder="keep"),
            8,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )
        weights = training.as_bytes(model.get_weights())
        if rank != 0:  # One comparison is enough.
            results.append((name, 0.0, weights))
            continue
        alone = build(1)
        optimizer = OPTIMIZERS[name]()
        if sparse_as_dense:
            DenseGradients(optimizer)
        training.compile_model(alone, optimizer)
        training.fit(alone, dataset(), 8 * size)
        difference = training.largest_difference(
            model.get_weights(), alone.get_weights()
        )
        results.append((name, difference, weights))
    return results


FEW = ["momentum", "adam", "adamw_global_clipnorm"]
REST = [name for name in OPTIMIZERS if name not in FEW]


@pytest.mark.parametrize(
    ("size", "sparse_as_dense", "names"),
    [
        (2, None, FEW[:1]),
        pytest.param(2, None, FEW[1:], marks=pytest.mark.slow),
        pytest.param(2, None, REST, marks=pytest.mark.slow),
        pytest.param(3, None, FEW, marks=pytest.mark.slow),
        pytest.param(2, True, ["adam"], marks=pytest.mark.slow),
        pytest.param(2, True, FEW, marks=pytest.mark.slow),
        pytest.param(3, True, FEW, marks=pytest.mark.slow),
        pytest.param(2, False, ["sgd"], marks=pytest.mark.slow),
    ],
)
def test_optimizers_match_one_process(rank_pool, size, sparse_as_dense, names):
    results = rank_pool(size).run(
        embedding_worker, args=(names, sparse_as_dense), timeout_s=150
    )
    for case in zip(*results, strict=True):
        for name, difference, weights in case:
            assert difference <= LIMIT, name
            assert weights == case[0][2], f"ranks differ: {name}"


def slices(count: int, words: int = WORDS) -> tf.IndexedSlices:
    """Every second one of the same row."""
    return tf.IndexedSlices(
        tf.fill([count, 4], 1.0 + ring.rank()),
        tf.range(count) // 2 % words,
        tf.constant([words, 4]),
    )


def choice_worker():
    """Which collectives a step has, for slices of static and of unknown number."""
    variable = keras.Variable(np.zeros((WORDS, 4), np.float32))

    def types_of(optimizer, gradient_of, spec):
        optimizer = ring.DistributedOptimizer(optimizer)
        optimizer.build([variable])

        @tf.function
        def step(count):
            optimizer.apply([gradient_of(count)], [variable])

        graph = step.get_concrete_function(spec).graph
        types = {op.type for op in graph.get_operations()}
        return sorted(
            kind.removeprefix("RingKeras") for kind in types if "RingKeras" in kind
        )

    sgd, adam = keras.optimizers.SGD, keras.optimizers.Adam
    unknown = tf.TensorSpec((), tf.int32)
    # Of both ranks together, 48 slices of 20 bytes are as much as twice the
    # 30 x 4 numbers. The ranks have different numbers of them, and agree.
    more = 10 * ring.rank()
    return [
        types_of(sgd(), lambda _: slices(20 + more), unknown),
        types_of(sgd(), lambda _: slices(19 + more), unknown),
        types_of(adam(), lambda _: slices(400), unknown),
        types_of(sgd(clipnorm=1.0), lambda _: slices(400), unknown),
        types_of(sgd(), slices, unknown),
        types_of(
            keras.optimizers.LossScaleOptimizer(sgd()), lambda _: slices(400), unknown
        ),
    ]


def test_the_cheaper_way_is_taken_where_it_makes_no_difference(rank_pool):
    dense = ["AllreduceStart", "AllreduceWait"]
    # A plan without buckets has one number to reduce in place of the first.
    sparse = ["Allgather", *dense]
    expected = [dense, sparse, sparse, sparse, sparse, dense]
    assert rank_pool(2).run(choice_worker) == [expected] * 2


def clipped_later_worker():
    """Whether slices are gathered, while clipping is set and unset."""
    variable = keras.Variable(np.zeros((WORDS, 4), np.float32))
    inner = keras.optimizers.SGD()
    optimizer = ring.DistributedOptimizer(inner)
    optimizer.build([variable])
    are_gathered = []
    for clipnorm in (None, 1.0, None):
        inner.clipnorm = clipnorm
        step = tf.function(lambda: optimizer.apply([slices(400)], [variable]))
        operations = step.get_concrete_function().graph.get_operations()
        are_gathered.append("RingKerasAllgather" in {op.type for op in operations})
    return are_gathered


def test_clipping_that_is_set_later_is_seen(rank_pool):
    """Keras clips by what it finds when a step is traced."""
    assert rank_pool(2).run(clipped_later_worker) == [[False, True, False]] * 2


def held_up_worker(pipes):
    gradient = SparseGradient(rows=20 + 30 * ring.rank(), row_nbytes=20, dense_nbytes=1)
    return while_python_is_held_up(
        pipes,
        "gradients/plan/rows",
        lambda: [
            choice.costs_less
            for choice in choose_dense([gradient], ring.global_process_set)
        ],
    )


def test_the_choice_needs_no_python_of_a_rank_that_has_said_its_own(
    rank_pool, tmp_path
):
    """The main thread waits for it in a trace, and another may keep Python's lock."""
    env = {"RING_KERAS_COLLECTIVE_TIMEOUT_S": "20", "RING_KERAS_TRANSPORT": "tcp"}
    pipes = make_pipes(tmp_path)
    assert rank_pool(2, env=env).run(held_up_worker, args=(pipes,)) == [[True]] * 2


def tape_worker():
    variable = tf.Variable(tf.zeros((WORDS, 4)))
    results = []
    for sparse_as_dense in (None, True):
        tape = ring.DistributedGradientTape(
            tf.GradientTape(), sparse_as_dense=sparse_as_dense
        )
        with tape:
            words = tf.constant([1, 1, 2 + ring.rank()])
            loss = tf.reduce_sum(tf.gather(variable, words))
        gradient = tape.gradient(loss, variable)
        is_dense = not isinstance(gradient, tf.IndexedSlices)
        rows = tf.convert_to_tensor(gradient).numpy()[:, 0]
        results.append((is_dense, rows[:5].tolist()))
    return results


def test_a_tape_returns_slices_unless_told(rank_pool):
    rows = [0.0, 2.0, 0.5, 0.5, 0.0]
    assert rank_pool(2).run(tape_worker) == [[(False, rows), (True, rows)]] * 2
