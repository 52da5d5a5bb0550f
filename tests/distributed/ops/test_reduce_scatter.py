"""Reduce-scatter: uneven rows, factors, gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool, tensors
from support.rank_pool import RankPools

import ring_keras as ring


def rows_of(rank: int, count: int, size: int) -> slice:
    """The first ranks get one more."""
    each, more = divmod(count, size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))


def check_values() -> None:
    size, rank = ring.size(), ring.rank()
    graph = tf.function(ring.reducescatter)
    for dtype in tensors.DTYPES:
        for op in tensors.ops_of(dtype):
            for shape in ((0,), (1,), (4, 3), (7,), (1009, 2)):
                inputs = [
                    tensors.small_values(other, shape, dtype) for other in range(size)
                ]
                expected = tensors.reduced(inputs, op)[rows_of(rank, shape[0], size)]
                for call in (ring.reducescatter, graph):
                    if call is graph and shape != (7,):
                        continue
                    result = call(tf.constant(inputs[rank]), op).numpy()
                    np.testing.assert_allclose(
                        result.astype(float),
                        expected.astype(float),
                        rtol=1e-2 if op == "average" else 0,
                        err_msg=f"{dtype} {op} {shape}",
                    )
                    assert result.dtype == expected.dtype


def test_each_rank_gets_its_rows(ranks: RankPool) -> None:
    ranks.run(check_values, timeout_s=120)


def check_bad_factor() -> None:
    """Rank 1's prescale is no scalar."""
    with pytest.raises(tf.errors.OpError) as caught:
        ring.reducescatter(
            [1.0, 2.0], "sum", prescale_factor=[1.0, 2.0] if ring.rank() == 1 else 1.0
        )
    assert isinstance(
        caught.value,
        tf.errors.InvalidArgumentError if ring.rank() == 1 else ring.RankMismatchError,
    )
    assert "prescale must be a scalar" in str(caught.value)
    assert ring.reducescatter(tf.ones([ring.size()]), "sum").numpy() == [ring.size()]


def test_a_bad_factor_of_one_rank_is_told_to_all(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_bad_factor, timeout_s=40)


def check_gradient(graph: bool) -> None:
    size, rank = ring.size(), ring.rank()
    count = 2 * size + 1

    def gradient_of(value: tf.Tensor, op: str) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(value)
            part = ring.reducescatter(
                value, op, prescale_factor=2.0, postscale_factor=3.0
            )
            loss = tf.reduce_sum(part) * (rank + 1.0)
        return tape.gradient(loss, value)

    function = tf.function(gradient_of) if graph else gradient_of
    owner = np.zeros(count)
    for other in range(size):
        owner[rows_of(other, count, size)] = other + 1
    for op, divisor in (("sum", 1), ("average", size)):
        np.testing.assert_allclose(
            function(tf.ones([count]), op), owner * 6 / divisor, rtol=1e-6
        )


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_gradient_is_gathered(ranks: RankPool, graph: bool) -> None:
    ranks.run(check_gradient, args=[graph])
