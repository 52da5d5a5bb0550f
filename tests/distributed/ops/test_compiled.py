"""Collectives in functions that XLA compiles."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool, tensors
from support.rank_pool import RankPools

import ring_keras as ring
from ring_keras import _libraries
from ring_keras.ops.grouped_allreduce import allreduce_start, allreduce_wait
from ring_keras.ops.step import in_a_step

pytestmark = pytest.mark.skipif(
    not _libraries.has_xla_kernels(), reason="needs TensorFlow 2.20 or newer"
)

compiled = functools.partial(tf.function, jit_compile=True)

SHAPES: list[tuple[int, ...]] = [(), (0,), (2, 3, 5), (70_001,)]


def check_allreduce(dtype: str) -> None:
    size, rank = ring.size(), ring.rank()
    call = compiled(ring.allreduce)
    for shape, op in itertools.product(SHAPES, tensors.ops_of(dtype)):
        inputs = [tensors.small_values(other, shape, dtype) for other in range(size)]
        for _ in range(3):  # A name's first uses go another way than the rest.
            result = call(tf.constant(inputs[rank]), op, name=f"{dtype}/{op}/{shape}")
            expected = tensors.reduced(inputs, op)
            np.testing.assert_array_equal(result.numpy(), expected)
        np.testing.assert_array_equal(  # The input is left alone.
            inputs[rank], tensors.small_values(rank, shape, dtype)
        )


OFTEN_USED = ("float32", "int32")
DTYPES = [
    pytest.param(dtype, marks=() if dtype in OFTEN_USED else pytest.mark.slow)
    for dtype in tensors.DTYPES
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce(rank_pool: RankPools, dtype: str) -> None:
    rank_pool(3).run(check_allreduce, args=(dtype,), timeout_s=120)


def check_all_kinds() -> None:
    """Several in one function, whose order XLA must not choose."""
    size, rank = ring.size(), ring.rank()

    @compiled
    def step(x: tf.Tensor) -> tuple[Any, ...]:
        first = allreduce_start([x, x * 2], "average", name="first")
        second = allreduce_start([x + 1], "sum", name="second")
        product = tf.linalg.matmul(x, x, transpose_b=True)
        gathered = ring.allgather(x)
        part = ring.reducescatter(gathered, "sum")
        ring.barrier()
        root = ring.broadcast(x, size - 1)
        exchanged = ring.alltoall(gathered)
        return (
            *allreduce_wait(second),
            *allreduce_wait(first),
            product,
            gathered,
            part,
            root,
            exchanged,
        )

    inputs = [tensors.small_values(other, (3, 4), "float32") for other in range(size)]
    x = inputs[rank]
    everything = np.concatenate(inputs)
    expected = [
        sum(inputs) + size,
        np.mean(inputs, axis=0),
        2 * np.mean(inputs, axis=0),
        x @ x.T,
        everything,
        size * x,
        inputs[-1],
        np.concatenate([x] * size),
    ]
    for _ in range(5):
        for got, wanted in zip(step(tf.constant(x)), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_all_kinds_in_one_function(ranks: RankPool) -> None:
    ranks.run(check_all_kinds)


def check_unknown_ranks() -> None:
    """Shapes that are known when XLA compiles, not when the ops are traced."""
    for call in (
        ring.allgather,
        lambda x: ring.reducescatter(x, "sum"),
        ring.alltoall,
    ):
        function = tf.function(
            call, jit_compile=True, input_signature=[tf.TensorSpec(None, tf.float32)]
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="a scalar has none"):
            function(tf.constant(1.0))


def test_ranks_known_to_xla_alone(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_unknown_ranks)


def check_shape_of_factor() -> None:
    """Known when XLA compiles, not when the op is traced."""
    scaled = tf.function(
        lambda x, factor: ring.allreduce(x, "sum", prescale_factor=factor),
        jit_compile=True,
        input_signature=[tf.TensorSpec([2]), tf.TensorSpec(None)],
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="prescale must be a sc"):
        scaled([1.0, 2.0], [1.0, 2.0])
    assert scaled([1.0, 2.0], 1.0).numpy().tolist() == [2.0, 4.0]


def test_a_factor_that_is_no_scalar(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_shape_of_factor)


def check_factors() -> None:
    """Known when XLA compiles, and not."""
    size, rank = ring.size(), ring.rank()

    @compiled
    def constant(x: tf.Tensor) -> tf.Tensor:
        return ring.allreduce(x, "sum", prescale_factor=0.1, postscale_factor=3.0)

    @compiled
    def variable(x: tf.Tensor, pre: tf.Tensor, post: tf.Tensor) -> tf.Tensor:
        return ring.allreduce(x, "sum", prescale_factor=pre, postscale_factor=post)

    @compiled
    def weighted(x: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        pending = allreduce_start([x, 2 * x], weight=weight, prescale_factor=2.0)
        return allreduce_wait(pending)

    @compiled
    def counted(x: tf.Tensor) -> tf.Tensor:
        return allreduce_wait(allreduce_start([x[0]], weight=tf.shape(x)[0]))[0]

    x = tf.fill([2, 5], rank + 1.0)
    total = size * (size + 1) / 2
    np.testing.assert_allclose(constant(x), np.full((2, 5), 0.3 * total), rtol=1e-6)
    for step in (1.0, 2.0, 7.0):
        factor = tf.constant(step)
        got = variable(x, factor, factor)
        np.testing.assert_allclose(got, np.full((2, 5), step**2 * total), rtol=1e-6)
        first, second = weighted(x, factor * rank)
        mean = 2 * sum(r * (r + 1) for r in range(size)) / max(1, size * (size - 1) / 2)
        np.testing.assert_allclose(first, np.full((2, 5), mean), rtol=1e-6)
        np.testing.assert_allclose(second, np.full((2, 5), 2 * mean), rtol=1e-6)
    # Each rank compiles another shape, and with it another weight.
    got = counted(tf.fill([rank + 1, 3], rank + 1.0))
    squares = sum((r + 1) ** 2 for r in range(size))
    np.testing.assert_allclose(got, np.full(3, squares / total), rtol=1e-6)


def test_factors(ranks: RankPool) -> None:
    ranks.run(check_factors)


def check_control_flow() -> None:
    size, rank = ring.size(), ring.rank()

    @compiled
    def loop(x: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(steps):
            pending = allreduce_start([x, x + 1], "average", name="loop")
            x = tf.add_n(allreduce_wait(pending))
        return x

    @compiled
    def branch(x: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
        before = ring.allreduce(x, "sum", name="before")
        return tf.cond(
            wanted, lambda: ring.allreduce(before, "sum", name="inside"), lambda: x
        )

    x = np.full(1000, float(rank), np.float32)
    value = np.mean(range(size))
    got = loop(tf.constant(x), 4)
    expected = value + value + 1
    for _ in range(3):
        expected = 2 * expected + 1
    np.testing.assert_allclose(got, np.full(1000, expected), rtol=1e-6)
    total = sum(range(size))
    for wanted in (True, False, True):
        got = branch(tf.constant(x), tf.constant(wanted))
        np.testing.assert_array_equal(got, np.full(1000, size * total) if wanted else x)


def test_loops_and_conditions(ranks: RankPool) -> None:
    ranks.run(check_control_flow)


def check_branches_of_a_step() -> None:
    """On rank 0 no data say which comes first: the branch, or what is around it."""
    rank, size = ring.rank(), ring.size()

    def reduced(x: tf.Tensor, name: str) -> tf.Tensor:
        with in_a_step():
            return ring.allreduce(x, "sum", name=name)

    @compiled
    def step(x: tf.Tensor, wanted: tf.Tensor) -> list[tf.Tensor]:
        before = reduced(x, "before the branch")
        own = x if rank == 0 else before

        def inner() -> tf.Tensor:
            deep = tf.cond(
                tf.reduce_sum(own) >= 0.0,
                lambda: reduced(own, "deep inside"),
                lambda: own,
            )
            return deep + reduced(own, "inside")

        between = tf.cond(wanted, inner, lambda: x)
        own = x if rank == 0 else x + 0.0 * between
        return [between, reduced(own, "after the branch"), before]

    x = tf.ones([4, 4])  # XLA runs small programs one call after the other.
    for wanted in (True, False, True):
        between, after, before = step(x, tf.constant(wanted))
        assert float(before[0, 0]) == float(after[0, 0]) == size
        total = 1.0 + (size - 1) * size  # Rank 0 has 1, the others `before`.
        assert float(between[0, 0]) == (2 * total if wanted else 1.0)


def test_branches_of_a_step_keep_their_place(ranks: RankPool) -> None:
    ranks.run(check_branches_of_a_step)


def check_gradients() -> None:
    rank = ring.rank()

    def loss(x: tf.Tensor) -> tf.Tensor:
        pending = allreduce_start([x], "sum", name="grouped")
        return tf.reduce_sum(
            ring.allreduce(x, "average")
            + allreduce_wait(pending)[0]
            + ring.broadcast(x, 0)
        )

    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = (rank + 1) * loss(x)
        return tape.gradient(value, x)

    x = tf.fill([4], float(rank))
    np.testing.assert_allclose(compiled(gradient)(x), tf.function(gradient)(x))


def test_gradients(ranks: RankPool) -> None:
    ranks.run(check_gradients)


def check_compression() -> None:
    size, rank = ring.size(), ring.rank()
    inputs = [tensors.random_values(other, 5003, "float32") for other in range(size)]
    call = functools.partial(ring.allreduce, compression="bf16")
    got = compiled(call)(tf.constant(inputs[rank]))
    np.testing.assert_array_equal(got, call(tf.constant(inputs[rank])))
    assert np.any(got != np.mean(inputs, axis=0))


def test_compression(rank_pool: RankPools) -> None:
    rank_pool(2, env={"RING_KERAS_TRANSPORT": "tcp"}).run(check_compression)


def message_of(function: Callable[[], Any], error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        function()
    return str(caught.value)


def check_errors() -> list[str]:
    rank = ring.rank()
    rows = tf.zeros([2 + rank, 3])

    def two_after_each_other(x: tf.Tensor) -> tf.Tensor:
        """The second is on its way when the first fails."""
        first = allreduce_start([x], "sum", name="first")
        second = allreduce_start([x[:1]], "sum", name="second")
        return allreduce_wait(first)[0], allreduce_wait(second)[0]

    precondition = tf.errors.FailedPreconditionError
    messages = [
        message_of(lambda: compiled(ring.allgather)(rows), precondition),
        message_of(lambda: compiled(ring.alltoall)(rows[:2]), precondition)
        if ring.size() > 2
        else "",
        message_of(lambda: compiled(two_after_each_other)(rows), precondition),
    ]
    np.testing.assert_array_equal(compiled(ring.allreduce)(tf.ones([3])), np.ones(3))
    return messages


def test_ranks_that_disagree_are_named(rank_pool: RankPools) -> None:
    first, second = rank_pool(2).run(check_errors)

    gathered, _, reduced = first
    assert "allgather 'allgather': shape differs across ranks" in gathered
    assert "rank 0 has [2,3], rank 1 has [3,3]" in gathered
    assert "XLA" in gathered
    assert "allreduce 'first': shape differs" in reduced
    assert [m.split("[Op:")[0] for m in second] == [m.split("[Op:")[0] for m in first]


def drop_a_start() -> None:
    """Its run ends, and with it the memory of the tensor, before it does."""
    count = 1 << 20

    @compiled
    def step(x: tf.Tensor) -> tf.Tensor:
        allreduce_start([2 * x], "sum", name="dropped")
        return tf.reduce_sum(x)

    @compiled
    def sevens(x: tf.Tensor) -> tf.Tensor:
        return 7 * x

    x = tf.ones([count])
    np.testing.assert_array_equal(sevens(x), 7.0)
    if ring.rank() == 1:
        ring.barrier()
    assert step(x) == count
    taken = [sevens(x) for _ in range(8)]
    if ring.rank() == 0:
        ring.barrier()
    # When the third use of the name has ended, so has the first.
    for _ in range(2):
        (total,) = ring.grouped_allreduce([x], "sum", name="dropped")
        np.testing.assert_array_equal(total, 2.0)
    for memory in taken:
        np.testing.assert_array_equal(memory, 7.0)


def test_a_dropped_start_uses_no_memory_of_its_run(rank_pool: RankPools) -> None:
    rank_pool(2).run(drop_a_start)


def run_twice_at_once() -> None:
    """Rank 1 sees to it that both runs of rank 0 have started before any waits."""
    x = tf.fill([1000], ring.rank() + 1.0)

    @compiled
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pending = allreduce_start([x], "sum", name="started")
        between = ring.allreduce(x, "sum", name="between")
        return allreduce_wait(pending)[0], between

    if ring.rank() == 0:
        with ThreadPoolExecutor(2) as threads:
            totals = list(threads.map(step, [x, x]))
    else:
        pending = [allreduce_start([x], "sum", name="started") for _ in range(2)]
        started = [allreduce_wait(each)[0] for each in pending]
        totals = [(each, ring.allreduce(x, "sum", name="between")) for each in started]
    np.testing.assert_array_equal(totals, 3.0)


def test_a_wait_finds_the_start_of_its_own_run(rank_pool: RankPools) -> None:
    rank_pool(2).run(run_twice_at_once)


def check_what_does_not_fail() -> None:
    """A run that one of these ended would take memory from what is under way."""

    @compiled
    def step(x: tf.Tensor, zero: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pending = allreduce_start([x], "sum", name="under way")
        tf.debugging.assert_positive(zero)
        infinite = tf.debugging.check_numerics(x / zero, "not finite")
        return allreduce_wait(pending)[0], infinite

    @compiled
    def calls_back(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pending = allreduce_start([x], "sum", name="under way")
        (same,) = tf.numpy_function(lambda value: value, [x], [tf.float32])
        return allreduce_wait(pending)[0], same

    x = tf.ones([1000])
    total, infinite = step(x, tf.constant(0.0))
    np.testing.assert_array_equal(total, ring.size())
    assert np.all(np.isinf(infinite))
    with pytest.raises(tf.errors.InvalidArgumentError, match="compile"):
        calls_back(x)


def test_no_other_op_ends_a_run(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_what_does_not_fail)


def check_not_compilable() -> None:
    unimplemented = tf.errors.UnimplementedError
    splits = tf.fill([ring.size()], 1)
    x = tf.ones([ring.size(), 2])
    message = message_of(lambda: compiled(ring.alltoall)(x, splits), unimplemented)
    assert "alltoall 'alltoall': with splits" in message
    assert "jit_compile" in message

    def wait_in_a_condition(x: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
        pending = allreduce_start([x], "sum", name="started")
        return tf.cond(wanted, lambda: allreduce_wait(pending)[0], lambda: x)

    with pytest.raises(tf.errors.OpError):
        compiled(wait_in_a_condition)(x, tf.constant(True))
    np.testing.assert_array_equal(ring.allreduce(tf.ones([3])).numpy(), np.ones(3))


def test_what_xla_cannot_do_is_refused(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_not_compilable)
