"""RING_KERAS_CHECK_REDUCTIONS finds bits that flip, and nothing where none does."""

from __future__ import annotations

import importlib.util
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.features import faults, measure_group, network
from support.features.groups import GROUPS
from support.hosts import run_on
from support.man_in_the_middle import ManInTheMiddle, after, where
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras.optimizers.gradient_reducer import GradientReducer
from ring_keras.optimizers.reduction_options import ReductionOptions

CHECK = {"RING_KERAS_CHECK_REDUCTIONS": "1"}
# 1 MB, and more than one block of elements.
SHAPE = (512, 512)


def new_reducer(**options: Any) -> GradientReducer:
    defaults = {
        "op": ring.Average,
        "process_set": None,
        "compression": "none",
        "groups": None,
        "local_layers": None,
    }
    return GradientReducer(ReductionOptions.read(**(defaults | options)))


def gradient(rank: int, step: int) -> np.ndarray:
    generator = np.random.default_rng([rank, step])
    return generator.normal(size=SHAPE).astype(np.float32)


def reduce_on_a_bad_link() -> list[bool]:
    """Whether each of the results is right."""
    ring.init()
    reducer = new_reducer()
    right = []
    for step in range(3):
        own = tf.constant(gradient(ring.rank(), step))
        (mean,) = reducer.reduce([own], ["kernel"])
        wanted = (gradient(0, step) + gradient(1, step)) / 2
        right.append(bool((mean.numpy() == wanted).all()))
    return right


PARTS = [gradient(0, 0), gradient(1, 0)]
SUM = PARTS[0] + PARTS[1]
# Where the bit flips: of an exponent on the way to the sum, and a low one of a sum on
# its way back. Ranks may divide before or after either.
FLIPS = {
    "adds up to": lambda: where(*PARTS, *(part / 2 for part in PARTS), at=3),
    "its bits differ across ranks": lambda: where(SUM, SUM / 2, at=0),
}


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("adds up to", marks=pytest.mark.slow),
        "its bits differ across ranks",
    ],
)
def test_a_bit_that_flips_on_the_way_is_an_error(make_hosts, said):
    link = make_hosts(ManInTheMiddle(FLIPS[said]()))
    outcomes = run_on(
        link,
        reduce_on_a_bad_link,
        [0, 1],
        more_env=CHECK,
        check=False,
        forks=True,
    )
    assert link.flipped
    for outcome in outcomes:
        assert outcome.exception_type == "CorruptDataError", outcome.describe()
        assert "gradient 'kernel' (gradients/bucket0)" in outcome.message
        assert said in outcome.message
        assert "dmesg" in outcome.message
    assert outcomes[0].message == outcomes[1].message


@pytest.mark.slow
@pytest.mark.parametrize("said", FLIPS)
def test_nobody_notices_without_it(make_hosts, said):
    link = make_hosts(ManInTheMiddle(FLIPS[said]()))
    of_ranks = run_on(link, reduce_on_a_bad_link, [0, 1], forks=True)
    assert link.flipped
    wrong = sorted(right.count(False) for right in of_ranks)
    assert wrong == ([1, 1] if said == "adds up to" else [0, 1])


def train_on_a_bad_link(jit_compile: bool) -> tuple[str, int]:
    ring.init()
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input(SHAPE[:1]), keras.layers.Dense(SHAPE[1], use_bias=False)]
    )
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    x = np.random.default_rng(1).normal(size=(8, SHAPE[0])).astype(np.float32)
    callbacks = [ring.callbacks.BroadcastGlobalVariables()]
    with pytest.raises(ring.CorruptDataError) as caught:
        model.fit(x, x, batch_size=4, epochs=10, verbose=0, callbacks=callbacks)
    return str(caught.value), int(optimizer.iterations)


@pytest.mark.slow
@pytest.mark.parametrize(
    "jit_compile", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_fit_ends_before_the_update(make_hosts, jit_compile):
    # The exponent of an element: found on its way to the sum, and on that back.
    link = make_hosts(ManInTheMiddle(after(6_000, at=-497)))
    first, second = run_on(
        link,
        train_on_a_bad_link,
        [0, 1],
        more_env=CHECK,
        args=(jit_compile,),
        forks=True,
    )
    assert link.flipped
    assert first == second
    message, steps = first
    assert "kernel' (gradients/bucket0)" in message
    assert 0 < steps < 20


def is_checked(reducer: GradientReducer, gradients: list[Any]) -> bool:
    @tf.function
    def step():
        return reducer.reduce(gradients, [f"g{i}" for i in range(len(gradients))])

    operations = step.get_concrete_function().graph.get_operations()
    return any(op.type == "RingKerasCheckReductions" for op in operations)


def every_kind(rank: int, dtype: tf.DType) -> list[Any]:
    """Gradients of one magnitude, and those whose elements differ by all they can."""
    generator = np.random.default_rng(rank)

    def values(*shape: int) -> tf.Tensor:
        largest = 4.0 if dtype == tf.float16 else 30.0
        exponents = generator.uniform(-40.0, largest, size=shape)
        return tf.cast(generator.normal(size=shape) * 10.0**exponents, dtype)

    rows = tf.constant([rank, 3])
    sparse = tf.IndexedSlices(values(2, 4), rows, tf.constant([9, 4]))
    plain = tf.cast(generator.normal(size=40_000), dtype)
    dense = [values(150, 151), None, values(), values(0, 3)]
    return [*dense, sparse, values(20_011), plain]


def reduce_soundly(dtype_name: str, options: dict[str, Any]) -> int:
    dtype = tf.as_dtype(dtype_name)
    gradients = every_kind(ring.rank(), dtype)
    names = [f"g{index}" for index in range(len(gradients))]
    reducer = new_reducer(**options)
    assert is_checked(reducer, gradients)
    eager = reducer.reduce(gradients, names)
    # One rank's loss scale was too large.
    if ring.rank() == 1:
        gradients[0] = tf.concat([gradients[0][:-1], [[float("inf")] * 151]], axis=0)
        gradients[2] = tf.constant(float("nan"), dtype)
    in_graph = tf.function(lambda: reducer.reduce(gradients, names))()
    assert not bool(tf.math.is_finite(tf.cast(in_graph[2], tf.float64)))
    if in_graph[4] is not None:
        gradients[4] = None
    compiled = tf.function(lambda: reducer.reduce(gradients, names), jit_compile=True)
    compiled()
    return sum(g is not None for g in eager)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float32", {"compression": "bf16"}),
        ("float32", {}),
        ("float32", {"compression": "fp16"}),
        ("float32", {"gradient_predivide_factor": 0.001}),
        ("float32", {"op": ring.Adasum, "sparse_as_dense": True}),
        ("float16", {"op": ring.Sum}),
        ("bfloat16", {}),
        ("float64", {"gradient_predivide_factor": 1000.0}),
    ],
)
@pytest.mark.parametrize("hosts", [1, 2])
def test_rounding_is_no_error(rank_pool, size, hosts, dtype, options):
    over = {"RING_KERAS_TRANSPORT": "tcp"} if hosts == 2 else {}
    pool = rank_pool(size, env=CHECK | over)
    assert pool.run(reduce_soundly, args=(dtype, options)) == [6] * size


def reduce_others() -> list[Any]:
    reducer = new_reducer(op=ring.Sum)
    own = tf.constant([2**30, ring.rank()], tf.int32)
    (total,) = reducer.reduce([own], ["counts"])
    none = reducer.reduce([None], ["nothing"])
    return [total.numpy().tolist(), none]


def test_integers_and_nothing_at_all(rank_pool):
    for total, nothing in rank_pool(2, env=CHECK).run(reduce_others):
        assert total == [-(2**31), 1]
        assert nothing == [None]


def reduce_while_one_has_joined() -> list[float]:
    if ring.rank() == 1:
        ring.join()
        return []
    (mean,) = new_reducer().reduce([tf.constant([1.0, 3.0 * ring.rank()])], ["w"])
    ring.join()
    return mean.numpy().tolist()


@pytest.mark.slow
def test_who_is_in_a_join_brings_nothing(rank_pool):
    first, _, third = rank_pool(3, env=CHECK).run(reduce_while_one_has_joined)
    assert first == third == [1.0, 3.0]


# Few enough for a run to take seconds.
PER_RUN = 3
RUNS = [
    pytest.param(group, start, id=f"{group}-{start}")
    for group, features in GROUPS.items()
    for start in range(0, len(features), PER_RUN)
]


@pytest.mark.slow
@pytest.mark.parametrize(("group", "start"), RUNS)
def test_features_are_what_they_are_without(rank_pool, group, start):
    features = GROUPS[group][start : start + PER_RUN]
    features = [f for f in features if importlib.util.find_spec(f.needs) is not None]
    pool = rank_pool(2, env=network.ENVIRONMENT | CHECK)
    results = pool.run(
        measure_group, args=(group, [f.name for f in features]), timeout_s=150
    )
    wrong = [
        line
        for feature, by_rank in zip(features, zip(*results, strict=True), strict=True)
        for line in faults(feature, by_rank)
    ]
    assert not wrong, "\n".join(wrong)


def train_half(jit_compile: bool) -> bool:
    """In 16 bits, with a loss scale that is too large at first."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = training.build(1)
    finally:
        keras.config.set_dtype_policy("float32")
    inner = keras.optimizers.SGD(0.1)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**40)
    model.compile(
        ring.DistributedOptimizer(optimizer, compression="fp16"),
        "mse",
        jit_compile=jit_compile,
    )
    data = ring.data.shard(training.dataset(80)).batch(4)
    callbacks = [ring.callbacks.BroadcastGlobalVariables()]
    model.fit(data, epochs=4, verbose=0, callbacks=callbacks)
    return float(optimizer.dynamic_scale) < 2.0**40


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_steps_that_overflow_are_no_error(rank_pool, jit_compile):
    pool = rank_pool(2, env=CHECK | {"RING_KERAS_TRANSPORT": "tcp"})
    assert pool.run(train_half, args=(jit_compile,)) == [True, True]


def joins_worker():
    with pytest.raises(ring.RankMismatchError) as caught:
        ring.init()
    return str(caught.value)


def test_ranks_of_which_one_does_not_check_do_not_join():
    for outcome in run_ranks(joins_worker, 2, env=[CHECK, {}]):
        assert "RING_KERAS_CHECK_REDUCTIONS is 1 on rank 0 and 0 on rank 1" in outcome
