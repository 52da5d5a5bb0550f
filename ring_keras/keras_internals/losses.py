"""Compiled losses: what each is divided by."""

from collections.abc import Sequence
from typing import Any

import keras

__all__ = [
    "NO_WEIGHT",
    "adds_losses",
    "batch_losses",
    "compiled_losses",
    "divides_by_lengths",
    "has_other_losses",
    "has_own_losses",
    "is_not_reduced",
    "loss_divides_by_sample_weight",
    "loss_divisors",
    "regularizes_activity",
    "summed_losses",
]


_NOT_REDUCED = ("none", None)

# Of losses that look at all examples of a batch together, unless they have an axis.
_BATCH_CLASSES = (keras.losses.Circle, keras.losses.Dice, keras.losses.Tversky)
_OF_BATCHES = (
    *("circle", "Circle", "dice", "Dice", "tversky", "Tversky"),
    *(keras.losses.circle, keras.losses.dice, keras.losses.tversky),
)


def summed_losses(model: keras.Model) -> list[keras.losses.Loss]:
    """Compiled losses that add up their batch instead of taking the mean.

    On TensorFlow without a reduction too: there the gradient of many numbers is that
    of their sum. Other back ends have none, so what trains is what the model's own
    code has made of them, and that counts as a mean.
    """
    return [loss for loss in compiled_losses(model) if _adds_up(loss)]


def has_other_losses(model: keras.Model) -> bool:
    """Whether something that does not add up, as far as one can see, is added.

    What layers add by `add_loss` is known once the model has been called.
    """
    others = [loss for loss in compiled_losses(model) if not _adds_up(loss)]
    return bool(others or model.losses) or regularizes_activity(model)


def adds_losses(model: keras.Model, losses: Sequence[Any]) -> bool:
    """Whether layers have added some: of their activity, or by `add_loss`.

    Those may be of the batch, or of weights alone.

    Args:
        model: Whose.
        losses: All that are added to the compiled one, with those of regularizers.
    """
    of_weights = [one for one in model.trainable_weights if one.regularizer is not None]
    return len(losses) > len(of_weights)


def regularizes_activity(model: keras.Model) -> bool:
    """Whether a layer adds a loss of what it makes of the batch."""
    return any(
        getattr(layer, "activity_regularizer", None) is not None
        for layer in model._flatten_layers()
    )


def batch_losses(model: keras.Model) -> list[str]:
    """The names of compiled losses that look at all examples of a batch together."""
    return [
        getattr(loss, "name", None) or getattr(loss, "__name__", None) or str(loss)
        for loss in compiled_losses(model)
        if loss in _OF_BATCHES or (isinstance(loss, _BATCH_CLASSES) and _joins(loss))
    ]


def _joins(loss: Any) -> bool:
    axis = getattr(loss, "axis", None)
    return axis is None or 0 in ((axis,) if isinstance(axis, int) else axis)


def compiled_losses(model: keras.Model) -> list[Any]:
    """As they were given to `compile()`: losses, functions and names."""
    losses = keras.tree.flatten(getattr(model, "loss", None))
    return [loss for loss in losses if loss is not None]


def _adds_up(loss: Any) -> bool:
    if not isinstance(loss, keras.losses.Loss):
        return False
    return loss.reduction == "sum" or (
        is_not_reduced(loss) and keras.backend.backend() == "tensorflow"
    )


def is_not_reduced(loss: keras.losses.Loss) -> bool:
    """Whether Keras leaves as it is what a loss has computed."""
    return loss.reduction in _NOT_REDUCED


def has_own_losses(model: keras.Model) -> bool:
    """Whether the model's own code makes of compiled losses what is trained with."""
    return any(
        getattr(type(model), name) is not getattr(keras.Model, name)
        for name in ("compute_loss", "train_step")
    )


def divides_by_lengths(model: keras.Model) -> bool:
    """Whether a mean may be taken of a loss for each step of a sequence, by Keras."""
    return not has_own_losses(model) and any(
        not _adds_up(loss)
        and not isinstance(loss, keras.losses.CTC)
        and getattr(loss, "__name__", loss) not in ("ctc", "CTC")
        for loss in compiled_losses(model)
    )


NO_WEIGHT = 1e-30
"""How much an example counts whose sample weight is 0, where a loss is divided by their
sum: nothing beside any other. Where no rank has others, each counts by its examples, so
that regularizers have the gradient that they have in one process."""


def loss_divisors(model: keras.Model, sample_weight: Any) -> list[Any]:
    """What the outputs' losses are divided by the sum of.

    Args:
        model: With a loss that is divided by the sum of the sample weights.
        sample_weight: Of a batch.

    Returns:
        Different sample weights; None for examples. Ranks can count by one of these.
    """
    weights = keras.tree.flatten(sample_weight)
    if has_own_losses(model):
        return _distinct([one for one in weights if one is not None] or [None])
    losses = model.loss
    if isinstance(losses, dict) and isinstance(sample_weight, dict):
        weights = [sample_weight.get(name) for name in losses if losses[name]]
    elif len(weights) == len(keras.tree.flatten(losses)):
        pairs = zip(keras.tree.flatten(losses), weights, strict=True)
        weights = [weight for loss, weight in pairs if loss]
    return _distinct(keras.tree.flatten(weights))


def _distinct(values: Sequence[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())


def loss_divides_by_sample_weight(model: keras.Model) -> bool:
    """Whether a compiled loss is divided by the sum of the sample weights."""
    return "mean_with_sample_weight" in _reductions(model)


def _reductions(model: keras.Model) -> set[str | None]:
    return {getattr(loss, "reduction", None) for loss in compiled_losses(model)}
