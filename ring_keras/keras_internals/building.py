"""Creates the variables that a model would create in its first step."""

from typing import Any

import keras
import tensorflow as tf

from ring_keras.errors import from_tensorflow

__all__ = ["create_variables"]


def create_variables(model: keras.Model, element_spec: Any) -> None:
    """Creates every variable of model, metrics and optimizers; runs no step.

    Args:
        model: A compiled model.
        element_spec: The spec of the batches it will get.

    Raises:
        RingKerasError: If tracing the step failed so, since it may communicate.
    """
    batch = tf.nest.map_structure(_none_if_absent, element_spec)
    try:
        model._symbolic_build(data_batch=batch)
    except Exception as first:
        _raise_own(first)
        try:
            if model.run_eagerly:
                _call_on_zeros(model, batch)
            else:
                _trace_step(model, batch)
        except Exception as second:
            _raise_own(second)
            raise first from None


def _trace_step(model: keras.Model, batch: Any) -> None:
    """For a model without `call`, such as a GAN: its step makes its variables.

    Keras traces without autograph too.
    """
    tf.function(model.train_step, autograph=False).get_concrete_function(batch)


def _call_on_zeros(model: keras.Model, batch: Any) -> None:
    """For a model that decides in Python what to do with its inputs.

    No step of it can be traced. Optimizers of its own that this does not build
    begin alike on every rank, as the step builds them.
    """
    inputs, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    model(tf.nest.map_structure(_zeros, inputs), training=False)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _zeros(spec: Any) -> tf.Tensor | None:
    if spec is None:
        return None
    return tf.zeros([size or 1 for size in spec.shape], spec.dtype)


def _raise_own(error: Exception) -> None:
    ours = from_tensorflow(error)
    if ours is not None:
        raise ours from (None if ours is error else error)


def _none_if_absent(spec: Any) -> Any:
    absent = isinstance(spec, (tf.OptionalSpec, type(tf.type_spec_from_value(None))))
    return None if absent else spec
