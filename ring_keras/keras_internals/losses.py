"""Compiled losses: what each is divided by."""

from typing import Any

import keras
import tensorflow as tf

__all__ = [
    "compiled_losses",
    "has_other_losses",
    "loss_divides_by_sample_weight",
    "summed_losses",
]


# Of losses that are not divided by anything.
_SUMS = ("sum", "none", None)


def summed_losses(model: keras.Model) -> list[keras.losses.Loss]:
    """Compiled losses that add up their batch instead of taking the mean.

    Without a reduction too: the gradient of many numbers is that of their sum.
    """
    return [loss for loss in compiled_losses(model) if _adds_up(loss)]


def has_other_losses(model: keras.Model) -> bool:
    """Whether something that does not add up, as far as one can see, is added.

    Known once the model has been called.
    """
    others = [loss for loss in compiled_losses(model) if not _adds_up(loss)]
    return bool(others or model.losses)


def compiled_losses(model: keras.Model) -> list[Any]:
    """As they were given to `compile()`: losses, functions and names."""
    losses = tf.nest.flatten(getattr(model, "loss", None))
    return [loss for loss in losses if loss is not None]


def _adds_up(loss: Any) -> bool:
    return isinstance(loss, keras.losses.Loss) and loss.reduction in _SUMS


def loss_divides_by_sample_weight(model: keras.Model) -> bool:
    """Whether a compiled loss is divided by the sum of the sample weights."""
    return "mean_with_sample_weight" in _reductions(model)


def _reductions(model: keras.Model) -> set[str | None]:
    return {getattr(loss, "reduction", None) for loss in compiled_losses(model)}
