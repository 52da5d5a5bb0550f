"""Gradients as Keras takes them, which are not always tensors."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from support import training

import ring_keras as ring


def values_worker():
    """An array, and slices whose parts are no tensors, with every kind of hook."""
    found = []
    for make in (
        lambda: keras.optimizers.SGD(1.0),
        lambda: keras.optimizers.SGD(1.0, gradient_accumulation_steps=2),
        lambda: keras.optimizers.Adam(1.0),
    ):
        variables = [keras.Variable([0.0, 0.0]), keras.Variable(tf.zeros((3, 2)))]
        optimizer = ring.DistributedOptimizer(make())
        for _ in range(2):
            slices = tf.IndexedSlices(
                np.full((1, 2), 1.0 + ring.rank(), np.float32), np.array([1]), (3, 2)
            )
            array = np.array([1.0, 3.0], np.float32) * (1 + 2 * ring.rank())
            optimizer.apply([array, slices], variables)
        found.append([np.asarray(variable) for variable in variables])
    return found


def test_arrays_and_slices_of_arrays_are_averaged(rank_pool):
    first, second = rank_pool(2).run(values_worker)

    for ours, theirs in zip(first, second, strict=True):
        assert training.as_bytes(ours) == training.as_bytes(theirs)
    rows = [[0, 0], [-1.5, -1.5], [0, 0]]
    np.testing.assert_array_equal(first[0][0], [-4.0, -12.0])
    np.testing.assert_array_equal(first[0][1], np.multiply(2, rows))
    np.testing.assert_array_equal(first[1][0], [-2.0, -6.0])
    np.testing.assert_array_equal(first[1][1], rows)


class LosesShape(keras.layers.Layer):
    """The graph does not know the shape of its weights' gradient."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 1), initializer="ones")

    def call(self, inputs):
        @tf.custom_gradient
        def product(inputs, kernel):
            def gradients(upstream):
                of_kernel = tf.matmul(inputs, upstream, transpose_a=True)
                lost = tf.compat.v1.placeholder_with_default(of_kernel, [None, 1])
                return tf.matmul(upstream, kernel, transpose_b=True), lost

            return tf.matmul(inputs, kernel), gradients

        return product(inputs, self.kernel.value)


def lost_shape_worker():
    x, y = training.arrays()
    size, rank = ring.size(), ring.rank()

    def trained(optimizer, part, batch):
        model = keras.Sequential([keras.Input((6,)), LosesShape()])
        model.compile(optimizer, "mse")
        options = {"batch_size": batch, "shuffle": False, "verbose": 0}
        model.fit(x[part], y[part], **options)
        return model.get_weights()

    ours = trained(
        ring.DistributedOptimizer(keras.optimizers.SGD(0.1)),
        slice(rank, 16 * size, size),
        4,
    )
    alone = trained(keras.optimizers.SGD(0.1), slice(16 * size), 4 * size)
    assert training.largest_difference(ours, alone) <= 1e-6


def test_a_gradient_has_the_shape_of_its_variable(rank_pool):
    rank_pool(2).run(lost_shape_worker)
