"""The moments of one batch normalization, replaced by those of all ranks.

Like the optimizer's hook, this replaces a method of one instance, which stays an
ordinary layer for whoever saves or copies it.
"""

from __future__ import annotations

import abc
import importlib
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras._requirements import of_back_end
from ring_keras.job.process_set import ProcessSet

__all__ = [
    "GlobalMoments",
    "described",
    "moments_of",
    "process_sets_of",
    "synchronize",
    "synchronize_flagged",
]


class GlobalMoments(abc.ABC):
    """Each back end has a class of its own.

    Args:
        layer: The layer.
        process_set: Ranks taking part; None for those that run the step.
    """

    def __init__(
        self, layer: keras.layers.BatchNormalization, process_set: ProcessSet | None
    ) -> None:
        self._layer = layer
        self.process_set = process_set

    @staticmethod
    def of(layer: keras.layers.BatchNormalization) -> GlobalMoments | None:
        """The one installed in this very layer."""
        method = internals.replacement(layer, internals.MOMENTS)
        owner = getattr(method, "__self__", None)
        return owner if isinstance(owner, GlobalMoments) else None

    def install(self) -> None:
        """Puts it into the layer."""
        internals.replace(self._layer, internals.MOMENTS, self._moments)

    @abc.abstractmethod
    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Mean and variance per channel, of the type of `inputs`; a collective.

        Args:
            inputs: This rank's batch.
            mask: Which of it counts, of one dimension less; or None.
        """


def synchronize(
    layer: keras.layers.BatchNormalization, process_set: ProcessSet | None
) -> None:
    """Has a layer take the moments of all ranks, whatever Keras computes with.

    Args:
        layer: The layer.
        process_set: As for `GlobalMoments`.
    """
    moments: type[GlobalMoments] | None = of_back_end("layers.RanksMoments")
    if moments is None:
        module = importlib.import_module("ring_keras.layers.tensorflow_moments")
        moments = module.TensorFlowMoments
    moments(layer, process_set).install()


def synchronize_flagged(model: keras.layers.Layer) -> bool:
    """The same for layers with Keras's flag, such as those of a copied model.

    Args:
        model: Whose layers are meant.

    Returns:
        Whether there was one that did not yet.
    """
    layers = [
        layer
        for layer in internals.synchronized_layers(model)
        if GlobalMoments.of(layer) is None
    ]
    for layer in layers:
        synchronize(layer, None)
    return bool(layers)


def moments_of(model: keras.layers.Layer) -> list[GlobalMoments | None]:
    """Those of the layers that are to take the moments of all ranks.

    Args:
        model: Whose layers are meant.

    Returns:
        One for each; None where it does not yet. Equal as long as what was traced of
        the model is right.
    """
    return [GlobalMoments.of(layer) for layer in internals.synchronized_layers(model)]


def described(model: keras.layers.Layer) -> list[Any]:
    """Of each layer whether it trains, and has a process set: alike on all ranks."""
    layers = internals.synchronized_layers(model)
    return [
        (layer.trainable, moments is not None and moments.process_set is not None)
        for layer, moments in zip(layers, moments_of(model), strict=True)
    ]


def process_sets_of(model: keras.layers.Layer) -> list[ProcessSet]:
    """Those that layers have of their own, each once."""
    own = [one.process_set for one in moments_of(model) if one is not None]
    return list({one.key(): one for one in own if one is not None}.values())
