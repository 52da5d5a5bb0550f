"""The adaptive sum, beside one made with numpy in one place."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool, tensors
from support.rank_pool import RankPools

import ring_keras as ring

SHAPES = [(), (1,), (7,), (0,), (2, 3, 5), (5003,)]
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-12}


def pair(a: tensors.Array, b: tensors.Array) -> tensors.Array:
    across, a_norm, b_norm = (a * b).sum(), (a * a).sum(), (b * b).sum()
    left = 1 - across / (2 * a_norm) if a_norm else 1.0
    right = 1 - across / (2 * b_norm) if b_norm else 1.0
    return left * a + right * b


def expected_of(inputs: list[tensors.Array]) -> tensors.Array:
    """Those beyond a power of two join the first; then neighbours, level by level."""
    rows = [array.astype(np.float64) for array in inputs]
    power = 1
    while power * 2 <= len(rows):
        power *= 2
    for position, row in enumerate(rows[power:]):
        rows[position] = pair(rows[position], row)
    rows = rows[:power]
    while len(rows) > 1:
        rows = [pair(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
    return rows[0]


def inputs_of(size: int, shape: tuple[int, ...], dtype: str) -> list[tensors.Array]:
    count = int(np.prod(shape, dtype=int))
    return [
        (1 + tensors.random_values(rank, count, dtype)).reshape(shape).astype(dtype)
        if dtype != "bfloat16"
        else tensors.random_values(rank, count, dtype).reshape(shape)
        for rank in range(size)
    ]


def assert_close(got: tf.Tensor, inputs: list[tensors.Array], dtype: str) -> None:
    expected = expected_of(inputs)
    scale = np.abs(expected).max(initial=1.0)
    difference = np.abs(got.numpy().astype(np.float64) - expected)
    assert difference.max(initial=0.0) <= TOLERANCE[dtype] * scale
    everywhere = ring.allgather(got[None]).numpy()
    for other in everywhere:
        np.testing.assert_array_equal(other, got.numpy())


def check_dtypes() -> None:
    size, rank = ring.size(), ring.rank()
    for dtype in tensors.FLOATS:
        for shape in SHAPES:
            inputs = inputs_of(size, shape, dtype)
            mine = tf.constant(inputs[rank])
            calls = [ring.allreduce]
            if shape == SHAPES[-1]:
                calls.append(tf.function(ring.allreduce))
            for call in calls:
                got = call(mine, op=ring.Adasum, name=f"{dtype}{shape}")
                assert (got.dtype, got.shape) == (mine.dtype, mine.shape)
                assert_close(got, inputs, dtype)


def test_every_dtype_and_shape(ranks: RankPool) -> None:
    ranks.run(check_dtypes)


def check_meaning() -> None:
    size, rank = ring.size(), ring.rank()
    same = tf.constant([1.0, -2.0, 3.0])
    np.testing.assert_allclose(ring.allreduce(same, op="adasum"), same, rtol=1e-6)
    own = tf.one_hot(rank, size)  # At right angles to all others.
    np.testing.assert_array_equal(ring.allreduce(own, op="adasum"), np.ones(size))
    # Ranks that have nothing to say leave the others as they are.
    silent = same if rank == size - 1 else tf.zeros(3)
    np.testing.assert_array_equal(ring.allreduce(silent, op="adasum"), same)
    halved = ring.allreduce(
        same, op="adasum", prescale_factor=4.0, postscale_factor=0.125
    )
    np.testing.assert_allclose(halved, same / 2, rtol=1e-6)


def check_groups() -> None:
    """Each tensor by itself, however they travel."""
    size, rank = ring.size(), ring.rank()
    shapes, dtypes = [(3,), (50, 2), ()], ["float32", "float32", "float64"]
    inputs = [
        inputs_of(size, shape, dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    got = ring.grouped_allreduce([tf.constant(i[rank]) for i in inputs], "adasum")
    for result, group, dtype in zip(got, inputs, dtypes, strict=True):
        assert_close(result, group, dtype)


def check_process_set() -> None:
    members = list(range(1, ring.size()))
    process_set = ring.add_process_set(members)
    if process_set.included():
        inputs = inputs_of(ring.size(), (11,), "float32")
        got = ring.allreduce(inputs[ring.rank()], "adasum", process_set=process_set)
        expected = expected_of([inputs[member] for member in members])
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    ring.remove_process_set(process_set)


def check_gradient() -> None:
    """Of the sum of all ranks' losses, which all have the same results."""
    size, rank = ring.size(), ring.rank()
    inputs = inputs_of(size, (3,), "float64")
    with tf.GradientTape() as tape:
        tape.watch(mine := tf.constant(inputs[rank]))
        result = ring.allreduce(mine, "adasum")
        loss = tf.reduce_sum(result * result)
    gradient = tape.gradient(loss, mine).numpy()
    step = 1e-6
    for element in range(3):
        losses = []
        for sign in (1, -1):
            moved = [array.copy() for array in inputs]
            moved[rank][element] += sign * step
            losses.append(size * (expected_of(moved) ** 2).sum())
        numeric = (losses[0] - losses[1]) / (2 * step)
        np.testing.assert_allclose(gradient[element], numeric, rtol=1e-5)


def check_refusals() -> None:
    for tensor in (tf.constant([1]), tf.constant([True])):
        with pytest.raises(ValueError, match="floating-point"):
            ring.allreduce(tensor, "adasum")
    with pytest.raises(ValueError, match="no op='adasum'"):
        ring.reducescatter(tf.ones([4]), "adasum")
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    with pytest.raises(ValueError, match="no op='adasum'"):
        ring.allreduce(slices, "adasum")
    op = "adasum" if ring.rank() else "sum"
    with pytest.raises(ring.RankMismatchError):
        ring.allreduce(tf.ones([4]), op, name="mixed")
    np.testing.assert_array_equal(ring.allreduce(tf.ones([3])), np.ones(3))


@pytest.mark.parametrize(
    "check",
    [check_meaning, check_groups, check_process_set, check_gradient, check_refusals],
)
def test_adasum(peers: RankPool, check) -> None:
    peers.run(check)


def check_compression(compression: str, tolerance: float) -> None:
    inputs = inputs_of(ring.size(), (5003,), "float32")
    got = ring.allreduce(inputs[ring.rank()], "adasum", compression=compression)
    assert got.dtype == tf.float32
    expected = expected_of(inputs)
    difference = np.abs(got.numpy() - expected).max()
    assert 1e-6 < difference <= tolerance * np.abs(expected).max()
    for other in ring.allgather(got[None]).numpy():
        np.testing.assert_array_equal(other, got.numpy())


@pytest.mark.parametrize(("compression", "step"), [("bf16", 2.0**-7), ("fp16", 2e-3)])
def test_compression(rank_pool: RankPools, compression: str, step: float) -> None:
    rank_pool(3).run(functools.partial(check_compression, compression, step))
