"""Buckets start in the order in which backpropagation makes the gradients."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from support import run_ranks

import ring_keras as ring
from ring_keras import _native

WIDTHS = (3, 5, 7)


class Declared(keras.Model):
    """Its layers are not used in the order in which their weights were made."""

    def __init__(self, uses: tuple[int, ...], extra: int = 0) -> None:
        super().__init__()
        self.denses = [keras.layers.Dense(width, use_bias=False) for width in WIDTHS]
        self.last = keras.layers.Dense(1, use_bias=False)
        self.uses, self.extra = uses, extra
        inputs = dict(zip(uses, (2, *(WIDTHS[use] for use in uses)), strict=False))
        for number, dense in enumerate(self.denses):
            dense.build((None, inputs[number]))
        self.last.build((None, WIDTHS[uses[-1]]))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        for use in self.uses:
            x = self.denses[use](x)
            for _ in range(self.extra if use == 0 else 0):
                x = tf.nn.relu(tf.identity(x))
        return self.last(x)


def rows(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).normal(size=(4, 2)).astype("float32")


def nbytes_of_buckets(uses: tuple[int, ...]) -> tuple[list[int], list[list[float]]]:
    ring.init()
    keras.utils.set_random_seed(1)
    model = Declared(uses)
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(ring.DistributedOptimizer(optimizer, bucket_size_bytes=1), "mse")
    model.fit(rows(ring.rank()), np.ones((4, 1)), batch_size=4, epochs=3, verbose=0)
    latest: dict[str, int] = {}
    for one in _native.recent_collectives():
        if one["name"].startswith("gradients/bucket"):
            latest[one["name"]] = one["bytes"]
    return [latest[name] for name in sorted(latest)], [
        weights.ravel().tolist() for weights in model.get_weights()
    ]


def alone(uses: tuple[int, ...]) -> list[list[float]]:
    keras.utils.set_random_seed(1)
    model = Declared(uses)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.concatenate([rows(0), rows(1)])
    model.fit(x, np.ones((8, 1)), batch_size=8, epochs=3, verbose=0)
    return [weights.ravel().tolist() for weights in model.get_weights()]


def test_the_layer_that_is_used_last_is_reduced_first() -> None:
    uses = (1, 2, 0)
    shapes = {1: 2 * 5, 2: 5 * 7, 0: 7 * 3}
    expected = [4 * 3, *(4 * shapes[use] for use in reversed(uses))]
    reference = alone(uses)
    for nbytes, weights in run_ranks(nbytes_of_buckets, 2, args=(uses,)):
        assert nbytes == expected
        for own, same in zip(weights, reference, strict=True):
            np.testing.assert_allclose(own, same, rtol=1e-5, atol=1e-6)


def branches() -> list[list[float]]:
    """The way of one of two branches is longer on rank 1."""
    ring.init()
    first, second = tf.Variable(tf.ones([8])), tf.Variable(tf.ones([16]))

    @tf.function
    def step() -> list[tf.Tensor]:
        with ring.DistributedGradientTape(
            tf.GradientTape(), bucket_size_bytes=1
        ) as tape:
            ways = [first * 2.0, second * 3.0]
            for _ in range(4):
                ways[ring.rank()] = tf.nn.relu(ways[ring.rank()])
            loss = (ring.rank() + 1.0) * tf.add_n([tf.reduce_sum(way) for way in ways])
        gradients: list[tf.Tensor] = tape.gradient(loss, [first, second])
        return gradients

    return [gradient.numpy().tolist() for _ in range(3) for gradient in step()]


def test_ranks_whose_steps_differ_take_the_order_of_the_first() -> None:
    expected = [[3.0] * 8, [4.5] * 16] * 3
    assert run_ranks(branches, 2) == [expected] * 2
