"""Keras 2, which is the package tf_keras on today's TensorFlow.

`TF_USE_LEGACY_KERAS=1` makes it `tf.keras`. Its optimizers have a place where
gradients come together, after the loss scale has been taken out of them and before
they are clipped, or found to be infinite: `aggregate_gradients`. There the ranks
reduce them.
"""

import sys
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.horovod._absent import refuse_unless_default
from ring_keras.optimizers.gradient_reducer import GradientReducer
from ring_keras.optimizers.reduction_options import ReductionOptions

__all__ = ["distribute", "is_tf_keras", "is_tf_keras_optimizer", "without_tf_keras"]


def is_tf_keras() -> bool:
    """Whether `tf.keras` is Keras 2."""
    return str(tf.keras.Model.__module__).startswith("tf_keras")


def is_tf_keras_optimizer(optimizer: Any) -> bool:
    """Whether it is one of Keras 2, of the older or the newer kind."""
    tf_keras: Any = sys.modules.get("tf_keras")
    if tf_keras is None:
        return False
    kinds = (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)
    return isinstance(optimizer, kinds)


def without_tf_keras(layers: Any) -> tuple[Any, list[Any]]:
    """What are no layers of Keras 2, and the weights of those that are.

    Args:
        layers: None, a layer, or several. Those of Keras 2 must have been built.
    """
    tf_keras: Any = sys.modules.get("tf_keras")
    if tf_keras is None or layers is None:
        return layers, []
    kind = tf_keras.layers.Layer
    several = [layers] if isinstance(layers, kind) else layers
    if not isinstance(several, Iterable):
        return layers, []
    several = list(several)
    weights = [
        weight
        for layer in several
        if isinstance(layer, kind)
        for weight in layer.trainable_weights
    ]
    return [layer for layer in several if not isinstance(layer, kind)], weights


def distribute(optimizer: Any, **options: Any) -> Any:
    """Makes an optimizer of Keras 2 reduce its gradients over the ranks.

    A copy that Keras makes of it, from its configuration, does not.

    Args:
        optimizer: Changed in place; it keeps its class, its name and its files.
        **options: As for `ReductionOptions.read`.

    Returns:
        The optimizer.
    """
    refuse_unless_default(
        "backward_passes_per_step",
        options.pop("backward_passes_per_step", 1),
        1,
        "Optimizers of Keras 2 apply each step's gradients at once.",
    )
    options.pop("average_aggregated_gradients", None)  # Of one pass, it is the same.
    layers, variables = without_tf_keras(options.pop("local_layers", None))
    keys = frozenset(internals.variable_key(variable) for variable in variables)
    reducer = GradientReducer(
        ReductionOptions.read(local_layers=layers, local_variables=keys, **options)
    )
    # That of a loss scale is called for what it wraps.
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    # The older kind has it with an underscore.
    name = "aggregate_gradients"
    if not hasattr(inner, name):
        name = f"_{name}"
    if getattr(inner, "_ring_keras_reduces", False):
        raise ValueError("DistributedOptimizer got an optimizer that is one already.")
    aggregate = getattr(inner, name)

    def reduce(grads_and_vars: Any) -> Any:
        pairs = list(aggregate(list(grads_and_vars)))
        variables = [variable for _, variable in pairs]
        gradients = reducer.reduce([gradient for gradient, _ in pairs], variables)
        return list(zip(gradients, variables, strict=True))

    # As attributes of the object, so that its class is what saved files name.
    object.__setattr__(inner, name, reduce)
    object.__setattr__(inner, "_ring_keras_reduces", True)
    return optimizer
