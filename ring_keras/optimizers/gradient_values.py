"""What a gradient is, and what can be done to one wherever it comes from."""

from typing import Any, TypeAlias

import tensorflow as tf

from ring_keras.ops.arguments import Factor, to_factor
from ring_keras.ops.scaling import scaled as scaled_values

__all__ = [
    "Gradient",
    "as_tensors",
    "dense",
    "rounded",
    "scaled",
    "with_rows",
    "with_shape_of",
    "zero_unless",
]

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


def as_tensors(gradient: Any) -> Gradient:
    """The gradient, made of tensors: Keras takes NumPy arrays and tuples too."""
    if gradient is None or isinstance(gradient, tf.Tensor):
        return gradient
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    parts = gradient.values, gradient.indices, gradient.dense_shape
    if all(part is None or tf.is_tensor(part) for part in parts):
        return gradient
    return tf.IndexedSlices(
        *(part if part is None else tf.convert_to_tensor(part) for part in parts)
    )


def with_shape_of(source: Any, gradient: Gradient) -> Gradient:
    """The gradient, of which the graph knows the shape if it knows its variable's.

    TensorFlow may lose it: on the way back through `einsum` for example.
    """
    if not isinstance(gradient, tf.Tensor) or gradient.shape.is_fully_defined():
        return gradient
    shape = getattr(source, "shape", None)  # Of a name there is none.
    return gradient if shape is None else tf.ensure_shape(gradient, shape)


def dense(gradient: Gradient) -> tf.Tensor | None:
    """The gradient with zeros where a sparse one has nothing."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.ensure_shape(tf.convert_to_tensor(gradient), gradient.shape)


def rounded(gradient: Gradient) -> Gradient:
    """The gradient, as its own ops round it.

    TensorFlow may multiply in another order, by what others multiply the product by. It
    does not past this, so that nothing that waits for a gradient changes its last bit.
    """
    gradient = as_tensors(gradient)
    if gradient is None or tf.executing_eagerly():
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.ensure_shape(gradient.values, gradient.values.shape)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.ensure_shape(gradient, gradient.shape)


def zero_unless(condition: tf.Tensor, gradient: Gradient) -> Gradient:
    """The gradient where the condition holds, else zeros, whatever it is: NaN too."""
    if gradient is None:
        return None
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.where(condition, gradient, tf.zeros_like(gradient))
    values = tf.where(condition, gradient.values, tf.zeros_like(gradient.values))
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def with_rows(gradient: Gradient, rows: int) -> Gradient:
    """A sparse gradient of that many slices: zeros of its first index are appended.

    These change no sum, no square and no norm. One with more slices is as it was.
    """
    assert isinstance(gradient, tf.IndexedSlices)
    missing = tf.maximum(rows - tf.shape(gradient.values)[0], 0)
    padding = [[0, missing], *[[0, 0]] * (gradient.values.shape.rank - 1)]
    first = tf.maximum(tf.reduce_max(gradient.indices[:1]), 0)  # 0 if there is none.
    return tf.IndexedSlices(
        tf.pad(gradient.values, padding),
        tf.pad(gradient.indices, padding[:1], constant_values=first),
        gradient.dense_shape,
    )


def scaled(gradient: Gradient, factor: Factor) -> Gradient:
    """`factor` times the gradient; the gradient itself for a factor of 1."""
    if gradient is None or (not tf.is_tensor(factor) and factor == 1.0):
        return gradient
    gradient = as_tensors(gradient)
    if isinstance(gradient, tf.IndexedSlices):
        values = scaled_values(gradient.values, to_factor(factor))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return scaled_values(gradient, to_factor(factor))
