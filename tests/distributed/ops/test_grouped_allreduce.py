"""Grouped allreduce, and its halves start and wait."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool, tensors
from support.rank_pool import RankPools

import ring_keras as ring
from ring_keras.ops.grouped_allreduce import allreduce_start, allreduce_wait


def check_mixed_group() -> None:
    size, rank = ring.size(), ring.rank()
    shapes = [(3,), (), (0,), (2, 2), (1001,)]
    dtypes = ["float32", "float64", "float32", "bfloat16", "float32"]
    inputs = [
        [
            tensors.small_values(other, shape, dtype)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        for other in range(size)
    ]
    slices = tf.IndexedSlices(*map(tf.constant, ([[1.0]], [rank], [size, 1])))
    for call in (ring.grouped_allreduce, tf.function(ring.grouped_allreduce)):
        *dense, sparse = call([*map(tf.constant, inputs[rank]), slices], "sum")
        for position, result in enumerate(dense):
            expected = tensors.reduced([one[position] for one in inputs], "sum")
            np.testing.assert_array_equal(result.numpy(), expected)
            assert result.dtype == dtypes[position]
        np.testing.assert_array_equal(sparse.indices, range(size))


def test_group_of_several_dtypes(ranks: RankPool) -> None:
    ranks.run(check_mixed_group)


def check_started_before_waited() -> None:
    size, rank = ring.size(), ring.rank()

    @tf.function
    def step(value: tf.Tensor) -> list[tf.Tensor]:
        started = [
            allreduce_start([value * factor, value], "sum", name=f"bucket{factor}")
            for factor in range(1, 9)
        ]
        between = tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
        waited = [allreduce_wait(pending)[0] for pending in reversed(started)]
        return [*waited, between]

    for number in range(20):
        *results, _ = step(tf.fill([100], float(rank + number)))
        total = sum(range(number, number + size))
        for factor, result in enumerate(reversed(results), start=1):
            np.testing.assert_array_equal(result, np.full(100, factor * total))
            assert result.shape == [100]


def test_many_starts_then_waits_in_another_order(ranks: RankPool) -> None:
    ranks.run(check_started_before_waited)


def check_inputs_stay() -> None:
    """A started tensor that others still use must not be written to."""
    rank = ring.rank()

    @tf.function
    def step(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        doubled = value * 2.0
        pending = allreduce_start([doubled], "sum")
        (total,) = allreduce_wait(pending)
        return doubled, total

    doubled, _ = step(tf.fill([1000], float(rank)))
    np.testing.assert_array_equal(doubled, np.full(1000, 2.0 * rank))
    variable = tf.Variable([float(rank)])
    allreduce_wait(allreduce_start([variable], "sum"))
    np.testing.assert_array_equal(variable, [rank])


def test_inputs_stay_as_they_are(ranks: RankPool) -> None:
    ranks.run(check_inputs_stay)


def check_gradient(graph: bool) -> None:
    size, rank = ring.size(), ring.rank()

    def gradients_of(a: tf.Tensor, b: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            reduced_a, reduced_b = ring.grouped_allreduce([a, b], "average")
            loss = tf.reduce_sum(reduced_a**2) * (rank + 1.0) + reduced_b
        return tape.gradient(loss, [a, b])

    function = tf.function(gradients_of) if graph else gradients_of
    a, b = function(tf.fill([3], rank + 1.0), tf.constant(1.0))
    mean = (size + 1) / 2
    # d/da of the sum over ranks of (rank + 1) * sum(mean(a)^2).
    np.testing.assert_allclose(a, np.full(3, 2 * mean * mean), rtol=1e-6)
    np.testing.assert_allclose(b, 1.0, rtol=1e-6)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_gradient(ranks: RankPool, graph: bool) -> None:
    ranks.run(check_gradient, args=[graph])


def check_dropped_handles() -> None:
    for _ in range(10):
        allreduce_start([tf.ones([1000])], name="dropped")
    ring.barrier()


def test_wait_may_be_left_out(ranks: RankPool) -> None:
    ranks.run(check_dropped_handles)


def check_empty_start() -> None:
    with pytest.raises(ValueError, match="one or more tensors of one dtype"):
        allreduce_start([])
    with pytest.raises(ValueError, match=r"float32.*int32"):
        allreduce_start([1.0, 2], "sum")


def test_start_takes_one_dtype(rank_pool: RankPools) -> None:
    rank_pool(1).run(check_empty_start)
