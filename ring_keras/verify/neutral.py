"""Switches off what makes a right script differ from one process."""

from __future__ import annotations

from dataclasses import dataclass

import keras

from ring_keras import keras_internals as internals
from ring_keras.layers import synchronize_batch_normalization

__all__ = ["Neutralized", "neutralize"]

# How strongly a layer draws random numbers, in Keras's dropout and noise layers and
# in those that have dropout inside, such as LSTM.
_STRENGTHS = ("rate", "stddev", "dropout", "recurrent_dropout")


@dataclass(frozen=True)
class Neutralized:
    """What was changed for the comparison.

    Attributes:
        quiet: Layers whose dropout or noise was switched off.
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
    quiet, random = [], []
    for layer in internals.flattened_layers(model):
        if getattr(layer, "seed_generator", None) is None:
            continue
        found = [
            name
            for name in _STRENGTHS
            if isinstance(getattr(layer, name, None), (int, float))
        ]
        if any(getattr(layer, name) for name in found):
            quiet.append(layer.name)
        elif not found:
            random.append(layer.name)
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
