"""How many examples a batch has."""

from __future__ import annotations

import pytest
import tensorflow as tf

from ring_keras.uneven_batches import example_count


@pytest.mark.parametrize("shape", [(5,), (None, 2), None])
def test_rows_are_counted_whatever_is_known_of_the_shape(shape):
    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def count(leaf):
        return example_count((None, tf.constant(0.0), leaf))

    assert int(count(tf.zeros([5, 2] if shape != (5,) else [5]))) == 5


def test_scalars_count_nothing():
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def count_one(leaf):
        return example_count(leaf)

    assert example_count((tf.constant(1.0), None)) is None
    assert int(count_one(tf.constant(1.0))) == 1
