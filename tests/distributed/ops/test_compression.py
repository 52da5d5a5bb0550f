"""Compression of what travels between hosts."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import tensors
from support.rank_pool import RankPools

import ring_keras as ring

# Every rank a host of its own: everything travels.
APART = {"RING_KERAS_TRANSPORT": "tcp"}
STEPS = {"none": 0.0, "bf16": 2.0**-8, "fp16": 2.0**-11}


def check_rounding(compression: str, step: float) -> None:
    size, rank = ring.size(), ring.rank()
    for count in (1, 700, 5003, 70_001, 600_011):
        inputs = [
            np.abs(tensors.random_values(other, count, "float32")) + 0.1
            for other in range(size)
        ]
        expected = np.mean(inputs, axis=0, dtype=np.float64)
        for call in (ring.allreduce, tf.function(ring.allreduce)):
            got = call(tf.constant(inputs[rank]), compression=compression).numpy()
            assert got.dtype == np.float32
            # One rounding on the way there, one on the way back.
            assert np.all(np.abs(got - expected) <= (2.01 * step + 1e-6) * expected)
            rounded = np.any(got != got.astype(np.float16).astype(np.float32))
            assert count == 1 or rounded or compression != "none"
            everywhere = ring.allgather(got[None]).numpy()
            np.testing.assert_array_equal(everywhere, np.stack([got] * size))


@pytest.mark.parametrize("compression", list(STEPS))
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(size, marks=() if size == 2 else pytest.mark.slow)
        for size in (1, 2, 3, 4)
    ],
)
def test_rounding(rank_pool: RankPools, size: int, compression: str) -> None:
    worker = functools.partial(check_rounding, compression, STEPS[compression])
    rank_pool(size, env=APART).run(worker)


def check_groups() -> None:
    rank, size = ring.rank(), ring.size()
    values = [tf.fill([n], float(rank)) for n in (3, 5000)]
    others = [tf.fill([7], tf.cast(rank, dtype)) for dtype in (tf.float64, tf.int32)]
    results = ring.grouped_allreduce(
        values + others, "sum", compression=ring.Compression.bf16
    )
    for tensor, result in zip(values + others, results, strict=True):
        assert result.dtype == tensor.dtype
        np.testing.assert_array_equal(
            result.numpy(), np.full(tensor.shape, sum(range(size)))
        )


def test_groups_of_several_dtypes(rank_pool: RankPools) -> None:
    rank_pool(2, env=APART).run(check_groups)


def check_within_a_host() -> None:
    value = 1 + 2.0**-20
    got = ring.allreduce(tf.fill([1000], value), compression="bf16")
    np.testing.assert_array_equal(got.numpy(), np.full(1000, value, np.float32))


def test_nothing_is_rounded_within_a_host(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_within_a_host)


def check_mismatch() -> None:
    compression = "bf16" if ring.rank() == 1 else "none"
    with pytest.raises(ring.RankMismatchError, match="compression differs"):
        ring.allreduce(tf.ones([10]), name="mixed", compression=compression)
    np.testing.assert_array_equal(ring.allreduce(tf.ones([3])).numpy(), np.ones(3))


@pytest.mark.parametrize("env", [{}, APART], ids=["shared", "apart"])
def test_ranks_must_agree(rank_pool: RankPools, env: dict[str, str]) -> None:
    rank_pool(2, env=env).run(check_mismatch)


def train(compression: str) -> list[Any]:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(300), keras.layers.Dense(1)])
    model.build([None, 10])
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.SGD(0.01), compression=compression
    )
    model.compile(optimizer=optimizer, loss="mse")
    inputs = np.random.default_rng(ring.rank()).normal(size=(32, 10))
    model.fit(inputs, inputs.sum(axis=1), epochs=2, batch_size=16, verbose=0)
    return [weight.numpy() for weight in model.weights]


@pytest.mark.slow
def test_training_ends_equal_on_every_rank_and_close(rank_pool: RankPools) -> None:
    exact, _ = rank_pool(2, env=APART).run(functools.partial(train, "none"))
    first, second = rank_pool(2, env=APART).run(functools.partial(train, "bf16"))
    for a, b, close in zip(first, second, exact, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, close, rtol=0.05, atol=0.01)
    assert any((a != b).any() for a, b in zip(first, exact, strict=True))


def test_unknown_compression() -> None:
    with pytest.raises(ValueError, match="Received: compression='zip'"):
        ring.allreduce(tf.ones([1]), compression="zip")
