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


def check_weights(graph: bool) -> None:
    size, rank = ring.size(), ring.rank()

    def average(a: tf.Tensor, b: tf.Tensor, weight: tf.Tensor) -> list[tf.Tensor]:
        return allreduce_wait(allreduce_start([a, b], weight=weight, name="weighted"))

    function = tf.function(average) if graph else average
    a, b = tf.fill([3], rank + 1.0), tf.fill([50_000], 2.0 * rank)
    every = np.arange(size)
    # One rank has no data; all have as many; as many numbers as there are ranks.
    for weights in (every, np.full(size, 3), 5 - every):
        if weights.sum() == 0:
            continue
        results = function(a, b, tf.constant(weights[rank], tf.float64))
        means = [
            np.average(values, weights=weights) for values in (every + 1, 2 * every)
        ]
        for result, mean, like in zip(results, means, (a, b), strict=True):
            np.testing.assert_allclose(result, np.full(like.shape, mean), rtol=1e-6)
    for result in function(a, b, tf.constant(0.0, tf.float64)):
        np.testing.assert_array_equal(result, tf.zeros_like(result))


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_weighted_average(ranks: RankPool, graph: bool) -> None:
    ranks.run(check_weights, args=[graph])


def check_weighted_gradient(graph: bool) -> None:
    size, rank = ring.size(), ring.rank()

    def gradient_of(value: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(value)
            pending = allreduce_start([value], weight=rank + 1.0)
            loss = tf.reduce_sum(allreduce_wait(pending)[0]) * (rank + 2.0)
        return tape.gradient(loss, value)

    function = tf.function(gradient_of) if graph else gradient_of
    numbers = np.arange(size)
    expected = (rank + 1) / (numbers + 1).sum() * (numbers + 2).sum()
    np.testing.assert_allclose(function(tf.ones([4])), np.full(4, expected), rtol=1e-6)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_gradient_of_a_weighted_average(ranks: RankPool, graph: bool) -> None:
    ranks.run(check_weighted_gradient, args=[graph])


def check_wrong_weights() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="only an average"):
        allreduce_start([1.0], "sum", weight=2.0)
    # All ranks are told of these, so they are found in the wait.
    pending = allreduce_start([1.0], weight=tf.ones([2], tf.float64))
    with pytest.raises(Exception, match=r"weight .* scalar"):
        allreduce_wait(pending)
    pending = allreduce_start([1.0], weight=-1.0)
    with pytest.raises(Exception, match="weight is -1"):
        allreduce_wait(pending)


def test_wrong_weights_are_refused(rank_pool: RankPools) -> None:
    rank_pool(1).run(check_wrong_weights)


def check_kept_outputs() -> None:
    """What a step returned stays as it was while later steps run."""
    size = ring.size()
    step = tf.function(lambda tensors: ring.grouped_allreduce(tensors, "sum"))
    kept = [
        step([tf.fill([3 << 18], number), tf.fill([2], number)])
        for number in (1.0, 2.0, 3.0, 4.0)
    ]
    for number, results in enumerate(kept, start=1):
        for result in results:
            np.testing.assert_array_equal(result, np.full(result.shape, number * size))


def test_outputs_outlive_their_step(ranks: RankPool) -> None:
    ranks.run(check_kept_outputs)


def check_second_wait() -> None:
    pending = allreduce_start([tf.ones([3])], "sum", name="once")
    np.testing.assert_array_equal(allreduce_wait(pending)[0], np.full(3, ring.size()))
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"'once'.*earlier wait"
    ):
        allreduce_wait(pending)


def test_results_go_to_the_first_wait(ranks: RankPool) -> None:
    ranks.run(check_second_wait)


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
