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
