"""Allreduce: values, factors, gradients, sparse tensors."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool, tensors

import ring_keras as ring


def check_every_dtype_and_op(graph: bool) -> None:
    call = tf.function(ring.allreduce) if graph else ring.allreduce
    for dtype in tensors.DTYPES:
        # Each shape of a graph costs a trace.
        few = [(), (0,), (7,)] if dtype == "float32" else [(7,)]
        shapes = few if graph else tensors.SHAPES
        for op in tensors.ops_of(dtype):
            for shape in shapes:
                inputs = [
                    tensors.small_values(rank, shape, dtype)
                    for rank in range(ring.size())
                ]
                result = call(tf.constant(inputs[ring.rank()]), op)
                expected = tensors.reduced(inputs, op)
                message = f"{dtype} {op} {shape}"
                assert result.dtype == dtype, message
                if op == "average":  # Thirds, each rounded to its dtype.
                    np.testing.assert_allclose(
                        result.numpy().astype(float),
                        expected.astype(float),
                        rtol=1e-2 if dtype in ("float16", "bfloat16") else 1e-6,
                        err_msg=message,
                    )
                else:
                    np.testing.assert_array_equal(
                        result.numpy(), expected, err_msg=message
                    )


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_every_dtype_and_op(ranks: RankPool, graph: bool) -> None:
    ranks.run(check_every_dtype_and_op, args=[graph], timeout_s=120)


def digests_of_random_sums() -> list[str]:
    digests = []
    for dtype in tensors.FLOATS:
        for count in (1, 1021, 300_007):
            inputs = [
                tensors.random_values(rank, count, dtype) for rank in range(ring.size())
            ]
            first, again = (
                ring.allreduce(inputs[ring.rank()], "sum").numpy() for _ in range(2)
            )
            assert first.tobytes() == again.tobytes(), "not repeatable"
            exact = np.sum([one.astype(np.float64) for one in inputs], axis=0)
            tolerance = {"float16": 1e-2, "bfloat16": 5e-2}.get(dtype, 1e-5)
            np.testing.assert_allclose(
                first.astype(np.float64), exact, rtol=tolerance, atol=tolerance
            )
            digests.append(hashlib.sha256(first.tobytes()).hexdigest())
    return digests


def test_ranks_end_bitwise_equal_and_runs_repeat(ranks: RankPool) -> None:
    results = ranks.run(digests_of_random_sums)

    assert all(result == results[0] for result in results)


def check_factors() -> None:
    size, rank = ring.size(), ring.rank()
    reduce = tf.function(
        lambda value, weight: ring.allreduce(
            value, "sum", prescale_factor=weight, postscale_factor=0.5
        )
    )
    for step in range(3):  # One trace, another weight each time.
        weight = tf.constant(float(rank + step))
        result = reduce(tf.constant([2.0, 4.0]), weight)
        total = sum(range(step, step + size))
        np.testing.assert_allclose(result, [1.0 * total, 2.0 * total])
    third = ring.allreduce(
        tf.constant(3.0, tf.float64), "average", postscale_factor=1 / 3
    )
    # Factors are 64 bits wide, so that nothing of a float64 is lost.
    assert abs(float(third) - 1.0) < 1e-15


def test_factors_may_differ_by_rank_and_step(ranks: RankPool) -> None:
    ranks.run(check_factors)


def check_gradients(graph: bool) -> None:
    size, rank = ring.size(), ring.rank()

    def gradient_of(value: tf.Tensor, op: str) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(value)
            reduced = ring.allreduce(
                value, op, prescale_factor=float(rank + 1), postscale_factor=3.0
            )
            loss = tf.reduce_sum(reduced * float(rank + 2))
        return tape.gradient(loss, value)

    function = tf.function(gradient_of) if graph else gradient_of
    upstream = sum(other + 2 for other in range(size))
    for op, share in (("sum", 1.0), ("average", 1.0 / size)):
        expected = (rank + 1) * 3.0 * upstream * share
        np.testing.assert_allclose(
            function(tf.constant([1.0, 2.0]), op), [expected, expected], rtol=1e-6
        )
    with tf.GradientTape() as tape:
        value = tf.constant(1.0)
        tape.watch(value)
        largest = ring.allreduce(value, "max", name="largest")
    with pytest.raises(NotImplementedError, match="'largest': op='max'"):
        tape.gradient(largest, value)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_gradient(ranks: RankPool, graph: bool) -> None:
    ranks.run(check_gradients, args=[graph])


def check_slices() -> None:
    size, rank = ring.size(), ring.rank()
    # As many slices as the rank's number: one rank has none.
    values = tf.fill([rank, 2], float(rank))
    slices = tf.IndexedSlices(values, tf.range(rank), tf.constant([size, 2]))
    for op, divisor in (("sum", 1), ("average", size)):
        dense = np.zeros([size, 2])
        for other in range(size):
            dense[:other] += other / divisor
        result = ring.allreduce(slices, op, postscale_factor=2.0)
        np.testing.assert_allclose(
            tf.math.unsorted_segment_sum(result.values, result.indices, size),
            dense * 2,
            rtol=1e-6,
        )
    # Integers are scaled as dense ones are: rounded toward zero, not to nothing.
    whole = tf.IndexedSlices(tf.constant([4, 7]), tf.range(2), tf.constant([2]))
    halved = ring.allreduce(whole, "sum", postscale_factor=0.5).values
    np.testing.assert_array_equal(halved, [2, 3] * size)
    # Or not at all.
    large = tf.IndexedSlices(tf.constant([2**53 + 1], tf.int64), tf.range(1))
    summed = ring.allreduce(large, "sum").values
    np.testing.assert_array_equal(summed, [2**53 + 1] * size)


def test_sparse_tensors_are_gathered(ranks: RankPool) -> None:
    ranks.run(check_slices)
