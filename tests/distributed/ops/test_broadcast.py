"""Broadcast, of tensors and of variables."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import RankPool, tensors

import ring_keras as ring
from ring_keras.ops.broadcast import grouped_broadcast


def check_values() -> None:
    size, rank = ring.size(), ring.rank()
    for root in range(size):
        for dtype in tensors.DTYPES:
            for shape in tensors.SHAPES if dtype == "float32" else [(7,)]:
                sent = tensors.small_values(root, shape, dtype)
                mine = tf.constant(tensors.small_values(rank, shape, dtype))
                result = ring.broadcast(mine, root)
                np.testing.assert_array_equal(result.numpy(), sent)
                # The root's own input is not the others' to write to.
                np.testing.assert_array_equal(
                    mine.numpy(), tensors.small_values(rank, shape, dtype)
                )
        graph = tf.function(lambda value, root=root: ring.broadcast(value, root))
        assert graph(tf.constant(rank)) == root
    large = ring.broadcast(tf.fill([500_000], float(rank)), size - 1)
    np.testing.assert_array_equal(large, np.full(500_000, size - 1.0))


def test_every_rank_gets_the_roots(ranks: RankPool) -> None:
    ranks.run(check_values)


def check_several_roots(kind: str) -> None:
    size, rank = ring.size(), ring.rank()
    roots = [*range(size), size - 1]

    def send(*values: tf.Tensor) -> list[tf.Tensor]:
        return grouped_broadcast(values, roots, name=f"roots/{kind}")

    function = {
        "eager": send,
        "graph": tf.function(send),
        "xla": tf.function(send, jit_compile=True),
    }[kind]
    # The last one needs several messages, the first of which has another tensor too.
    lengths = [1000 * place + 1 for place in range(size)] + [70_001]
    for step in range(4):
        values = [
            tf.fill([3, length], float(10 * rank + place + step))
            for place, length in enumerate(lengths)
        ]
        for place, (root, result) in enumerate(
            zip(roots, function(*values), strict=True)
        ):
            expected = np.full([3, lengths[place]], 10.0 * root + place + step)
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("kind", ["eager", "graph", "xla"])
def test_each_tensor_may_have_its_root(ranks: RankPool, kind: str) -> None:
    ranks.run(check_several_roots, args=[kind])


def check_gradient_of_roots() -> None:
    size, rank = ring.size(), ring.rank()
    values = [tf.ones([2]) for _ in range(size)]
    with tf.GradientTape() as tape:
        tape.watch(values)
        sent = grouped_broadcast(values, list(range(size)))
        loss = sum(tf.reduce_sum(one) for one in sent) * (rank + 1.0)
    for root, gradient in enumerate(tape.gradient(loss, values)):
        expected = sum(range(1, size + 1)) if rank == root else 0.0
        np.testing.assert_allclose(gradient, [expected, expected])


def test_gradients_are_summed_at_each_root(ranks: RankPool) -> None:
    ranks.run(check_gradient_of_roots)


def check_wrong_roots() -> None:
    with pytest.raises(ValueError, match="Received: 1 ranks, 2 tensors"):
        grouped_broadcast([tf.ones([]), tf.ones([])], [0])
    if ring.size() == 1:
        return
    roots = [0, ring.rank()]
    with pytest.raises(ring.RankMismatchError, match=r"RK\d+.*list of roots differs"):
        grouped_broadcast([tf.ones([]), tf.ones([])], roots, name="other")


def test_roots_that_differ_are_told(ranks: RankPool) -> None:
    ranks.run(check_wrong_roots)


def check_gradient(graph: bool) -> None:
    size, rank = ring.size(), ring.rank()
    root = size - 1

    def gradient_of(value: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = tf.reduce_sum(ring.broadcast(value, root) * (rank + 1.0))
        return tape.gradient(loss, value)

    function = tf.function(gradient_of) if graph else gradient_of
    expected = sum(range(1, size + 1)) if rank == root else 0.0
    np.testing.assert_allclose(function(tf.ones([2])), [expected, expected])


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_gradient_is_summed_at_the_root(ranks: RankPool, graph: bool) -> None:
    ranks.run(check_gradient, args=[graph])


def check_variables() -> None:
    size, rank = ring.size(), ring.rank()
    root = size - 1

    def make() -> list[tf.Variable | keras.Variable]:
        return [
            tf.Variable(tf.fill([3], float(rank)), name="weights"),
            tf.Variable(rank, name="step"),
            keras.Variable(np.full([2, 2], rank, "float32"), name="kernel"),
            tf.Variable(tf.zeros([0])),
            tf.Variable(rank == root),
        ]

    def check(variables: list[tf.Variable | keras.Variable]) -> None:
        np.testing.assert_array_equal(variables[0].numpy(), np.full(3, root))
        assert variables[1].numpy() == root
        np.testing.assert_array_equal(variables[2].numpy(), np.full([2, 2], root))
        assert variables[4].numpy()

    variables = make()
    ring.broadcast_variables(variables, root)
    check(variables)

    variables = make()
    tf.function(lambda: ring.broadcast_variables(variables, root))()
    check(variables)
    ring.broadcast_variables([])


def test_variables_change_in_place(ranks: RankPool) -> None:
    ranks.run(check_variables)


def check_variables_that_differ() -> None:
    rank = ring.rank()
    size = ring.size()
    same = tf.Variable([float(rank)], name="same")
    odd = tf.Variable(tf.fill([3 if rank == size - 1 else 2], 1.0), name="odd")
    with pytest.raises(ring.RankMismatchError) as info:
        ring.broadcast_variables([same, odd])
    message = str(info.value)
    assert "variable 1 differs" in message
    assert "rank 0 has 'odd:0' (float32 [2])" in message
    assert f"rank {size - 1} has 'odd:0' (float32 [3])" in message
    assert same.numpy() == [rank]

    with pytest.raises(ring.RankMismatchError, match="no such variable, only 1"):
        ring.broadcast_variables([same, same] if rank == 0 else [same])

    ring.broadcast_variables([same])
    assert same.numpy() == [0]


def test_variables_that_differ_are_named(peers: RankPool) -> None:
    peers.run(check_variables_that_differ)
