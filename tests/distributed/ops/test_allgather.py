"""Allgather: any number of rows, gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool, tensors

import ring_keras as ring


def rows_of(rank: int, case: str) -> int:
    return {"even": 3, "uneven": 2 * rank + 1, "one empty": rank, "all empty": 0}[case]


def check_values() -> None:
    size, rank = ring.size(), ring.rank()
    calls = [ring.allgather, tf.function(ring.allgather)]
    for case in ("even", "uneven", "one empty", "all empty"):
        for dtype in tensors.DTYPES if case == "uneven" else ["float32"]:
            for inner in ((), (2, 3)):
                inputs = [
                    tensors.small_values(other, (rows_of(other, case), *inner), dtype)
                    for other in range(size)
                ]
                # Graphs with one dtype: each shape costs a trace.
                for call in calls if dtype == "float32" else calls[:1]:
                    result = call(tf.constant(inputs[rank]))
                    np.testing.assert_array_equal(
                        result.numpy(),
                        np.concatenate(inputs),
                        err_msg=f"{case} {dtype}",
                    )
    large = np.full([100_000 * (rank + 1)], rank, np.int64)
    np.testing.assert_array_equal(
        ring.allgather(large),
        np.repeat(np.arange(size), 100_000 * (np.arange(size) + 1)),
    )
    np.testing.assert_array_equal(ring.allgather(rank), range(size))


def test_rows_of_all_ranks_in_order(ranks: RankPool) -> None:
    ranks.run(check_values)


def check_gradient(graph: bool, dtype: str) -> None:
    size, rank = ring.size(), ring.rank()
    counts = list(range(size))
    total = sum(counts)

    def gradient_of(value: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(value)
            gathered = ring.allgather(value)
            factors = tf.range(2.0 * total) * (rank + 1.0)
            factors = tf.cast(tf.reshape(factors, [total, 2]), dtype)
            loss = tf.reduce_sum(gathered * factors)
        return tape.gradient(loss, value)

    function = tf.function(gradient_of) if graph else gradient_of
    gradient = function(tf.ones([counts[rank], 2], dtype))
    every_row = np.arange(2.0 * total).reshape(total, 2) * sum(range(1, size + 1))
    start = sum(counts[:rank])
    np.testing.assert_allclose(
        tf.cast(gradient, tf.float64), every_row[start : start + counts[rank]]
    )
    assert gradient.dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_gradient_goes_to_the_rows_owner(
    ranks: RankPool, graph: bool, dtype: str
) -> None:
    ranks.run(check_gradient, args=[graph, dtype])


def retraced_worker() -> list[float]:
    """Gradients of a function that one rank traces more often than the others."""
    weight = tf.Variable(2.0)

    @tf.function
    def loss_of(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(ring.allgather(weight * x))

    gradients = []
    for step in range(3):
        # The second batch of the last rank is shorter.
        rows = 2 if step == 1 and ring.rank() == ring.size() - 1 else 3
        with tf.GradientTape() as tape:  # Outside of the function.
            loss = loss_of(tf.ones([rows]))
        gradients.append(float(tape.gradient(loss, weight)))
    return gradients


def test_one_rank_may_trace_gradients_again(ranks: RankPool) -> None:
    size = len(results := ranks.run(retraced_worker))

    for rank, gradients in enumerate(results):
        second = 2 if rank == size - 1 else 3
        assert gradients == [3.0 * size, second * size, 3.0 * size]
