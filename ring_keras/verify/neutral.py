"""Switches off what makes a right script differ from one process."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import keras

from ring_keras import keras_internals as internals
from ring_keras.layers import synchronize_batch_normalization

__all__ = ["Neutralized", "neutralize"]

# How strongly a layer draws random numbers, in Keras's dropout and noise layers and
# in those that have dropout inside, such as LSTM.
_STRENGTHS = ("rate", "stddev", "dropout", "recurrent_dropout")


def _draws(layer: keras.layers.Layer) -> bool:
    """Whether it has a generator of random numbers, which has no common name."""
    seeds = keras.random.SeedGenerator
    return any(isinstance(value, seeds) for value in vars(layer).values())


def _leave_training(layer: keras.layers.Layer) -> bool:
    """Has an augmentation do what it does outside of training, if it is one.

    One that learns something could be another layer there.
    """
    call = layer.call
    if (
        layer.trainable_variables
        or "training" not in inspect.signature(call).parameters
    ):
        return False
    layer.call = lambda *args, **kwargs: call(*args, **{**kwargs, "training": False})
    return True


@dataclass(frozen=True)
class Neutralized:
    """What was changed for the comparison.

    Attributes:
        quiet: Layers whose dropout, noise or augmentation was switched off.
        random: Layers that may draw random numbers all the same.
        synchronized: How many batch normalizations were synchronized.
    """

    quiet: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    synchronized: int = 0


def neutralize(model: keras.Model, *, distributed: bool) -> Neutralized:
    """Makes the model one that N ranks train as one process does.

    Before its step is traced.

    Args:
        model: The model.
        distributed: Whether the ranks take steps together, as synchronized layers
            must.
    """
    quiet: list[str] = []
    random: list[str] = []
    for layer in internals.flattened_layers(model):
        if not _draws(layer):
            continue
        found = [
            name
            for name in _STRENGTHS
            if isinstance(getattr(layer, name, None), (int, float))
        ]
        if any(getattr(layer, name) for name in found):
            quiet.append(layer.name)
        elif not found:
            is_off = _leave_training(layer)
            (quiet if is_off else random).append(layer.name)
        for name in found:
            setattr(layer, name, 0.0)
    apart = [
        layer
        for layer in internals.batch_normalizations(model)
        if not getattr(layer, "synchronized", False)
    ]
    if distributed:
        for layer in apart:
            synchronize_batch_normalization(layer)
    return Neutralized(tuple(quiet), tuple(random), len(apart) if distributed else 0)
