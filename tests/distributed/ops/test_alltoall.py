"""Alltoall: splits, gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool, tensors

import ring_keras as ring


def check_even() -> None:
    size, rank = ring.size(), ring.rank()
    for dtype in tensors.DTYPES:
        inputs = [
            tensors.small_values(other, (2 * size, 3), dtype) for other in range(size)
        ]
        expected = np.concatenate([one[2 * rank : 2 * rank + 2] for one in inputs])
        for call in (ring.alltoall, tf.function(ring.alltoall)):
            result = call(tf.constant(inputs[rank]))
            np.testing.assert_array_equal(result.numpy(), expected)
    empty = ring.alltoall(tf.zeros([0, 4]))
    assert empty.shape == [0, 4]


def test_rows_are_dealt_out_evenly(ranks: RankPool) -> None:
    ranks.run(check_even)


def splits_of(rank: int, size: int) -> list[int]:
    """Zero for some: rank r sends (r + other) % 3 rows to each other."""
    return [(rank + other) % 3 for other in range(size)]


def rows_sent(rank: int, size: int) -> np.ndarray:
    """Each row says who sent it, and for whom."""
    rows = [
        (rank, other) for other, n in enumerate(splits_of(rank, size)) for _ in range(n)
    ]
    return np.array(rows, np.float32).reshape(-1, 2)


def check_splits() -> None:
    size, rank = ring.size(), ring.rank()
    for dtype in ("int32", "int64"):
        splits = tf.constant(splits_of(rank, size), dtype)
        result, received = ring.alltoall(rows_sent(rank, size), splits)
        expected = [splits_of(other, size)[rank] for other in range(size)]
        np.testing.assert_array_equal(received, expected)
        assert received.dtype == dtype
        np.testing.assert_array_equal(result[:, 0], np.repeat(range(size), expected))
        np.testing.assert_array_equal(result[:, 1], np.full(sum(expected), rank))


def test_splits_say_how_many_rows_go_where(ranks: RankPool) -> None:
    ranks.run(check_splits)


def check_gradient(graph: bool) -> None:
    size, rank = ring.size(), ring.rank()

    def gradient_of(value: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(value)
            result, _ = ring.alltoall(value, splits)
            loss = tf.reduce_sum(result) * (rank + 1.0)
        return tape.gradient(loss, value)

    function = tf.function(gradient_of) if graph else gradient_of
    sent = rows_sent(rank, size)
    gradient = function(tf.constant(sent), tf.constant(splits_of(rank, size)))
    # A row's gradient is what its receiver multiplied it by.
    np.testing.assert_array_equal(gradient, np.repeat(sent[:, 1:] + 1, 2, axis=1))


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_gradient_travels_back(ranks: RankPool, graph: bool) -> None:
    ranks.run(check_gradient, args=[graph])


def check_bad_splits() -> None:
    rows = tf.zeros([ring.size() + 1, 2])
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        ring.alltoall(rows, [1] * ring.size(), name="too few")
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        ring.alltoall(rows, [-1] + [2] * (ring.size() - 1), name="negative")
    with pytest.raises(ValueError, match="in integers"):
        ring.alltoall(rows, [1.0])
    if ring.size() > 1:
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
            ring.alltoall(rows, name="not even")
    ring.barrier()


def test_splits_that_do_not_fit(ranks: RankPool) -> None:
    ranks.run(check_bad_splits)
