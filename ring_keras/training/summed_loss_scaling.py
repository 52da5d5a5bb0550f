"""Makes an average of gradients right for losses that add up their batch.

In an average weighted by numbers of examples a rank counts for its share of them,
which is what a mean over the global batch wants. Of a sum over the batch every
rank's part counts in full: its gradient is divided by the rank's share beforehand,
so that the average gives the sum. The loss that is reported stays the rank's own.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals

__all__ = ["gradients_multiplied"]


@contextlib.contextmanager
def gradients_multiplied(
    losses: Iterable[keras.losses.Loss], factor: tf.Tensor | float
) -> Iterator[None]:
    """Multiplies the gradients, not the values, of losses that are called inside.

    Args:
        losses: Losses of Keras; their method `call` is replaced meanwhile.
        factor: A number, or a scalar tensor.
    """
    unique = list({id(loss): loss for loss in losses}.values())
    before = [internals.replacement(loss, internals.LOSS_CALL) for loss in unique]
    for loss in unique:
        _replace(loss, factor)
    try:
        yield
    finally:
        for loss, method in zip(unique, before, strict=True):
            internals.restore(loss, internals.LOSS_CALL)
            if method is not None:
                internals.replace(loss, internals.LOSS_CALL, method)


def _replace(loss: keras.losses.Loss, factor: tf.Tensor | float) -> None:
    call = loss.call

    def multiplied(*args: Any, **kwargs: Any) -> Any:
        values = tf.convert_to_tensor(call(*args, **kwargs))
        # Its own code has made one number of the batch: as elsewhere that is a mean.
        if internals.is_not_reduced(loss) and values.shape.rank == 0:
            return values
        return _with_gradient_times(values, factor)

    internals.replace(loss, internals.LOSS_CALL, multiplied)


def _with_gradient_times(values: tf.Tensor, factor: tf.Tensor | float) -> tf.Tensor:
    """The values, and `factor` times their gradient."""

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return upstream * tf.cast(factor, upstream.dtype)

    result = tf.custom_gradient(lambda x: (tf.identity(x), gradient))(values)
    mask = getattr(values, internals.MASK, None)
    if mask is not None:
        setattr(result, internals.MASK, mask)
    return result
