"""Models: their layers of some kinds, and how `fit` runs them."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from ring_keras.keras_internals.names import (
    INITIAL_EPOCH,
    METRICS_OF_METRIC,
    MOMENTS,
    REDUCTION_AXES,
    STATE,
    STATE_IS_TAKEN_BACK,
    TRAINABLE_VARIABLES,
)
from ring_keras.keras_internals.private_names import private
from ring_keras.keras_internals.replacing import replacement
from ring_keras.keras_internals.variables import is_keras_variable

__all__ = [
    "batch_normalizations",
    "build_on_batch",
    "flattened_layers",
    "frozen_weights",
    "in_order_of_metrics",
    "initial_epoch",
    "inner_metrics",
    "keep_state_of_step",
    "recurrent_states",
    "reduction_axes",
    "seed_states",
    "set_initial_epoch",
    "set_train_function",
    "spectral_vectors",
    "synchronized_layers",
    "synchronized_statistics",
    "train_function",
]


def flattened_layers(model: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Those in a model, at any depth."""
    return list(model._flatten_layers(include_self=False))


def batch_normalizations(
    model: keras.layers.Layer,
) -> list[keras.layers.BatchNormalization]:
    """Those in a model, at any depth, or the layer itself."""
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
    ]


def synchronized_layers(
    model: keras.layers.Layer,
) -> list[keras.layers.BatchNormalization]:
    """The batch normalizations that are to take the moments of all ranks.

    Those with `synchronized=True`, or with such moments already.
    """
    return [
        layer
        for layer in batch_normalizations(model)
        # Older Keras has no such argument.
        if getattr(layer, "synchronized", False) or replacement(layer, MOMENTS)
    ]


def synchronized_statistics(model: keras.Model) -> list[keras.Variable]:
    """Their moving statistics."""
    return [
        variable
        for layer in synchronized_layers(model)
        for variable in layer.non_trainable_variables
    ]


def spectral_vectors(model: keras.Model) -> list[keras.Variable]:
    """What `SpectralNormalization` keeps, which follows from the weights alone."""
    return [
        layer.vector_u
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.SpectralNormalization) and layer.built
    ]


def frozen_weights(model: keras.Model) -> list[keras.Variable]:
    """Weights that training would change, of layers with `trainable=False`."""
    return [
        variable
        for layer in model._flatten_layers()
        for variable in private(layer, TRAINABLE_VARIABLES)
        if not variable.trainable
    ]


def in_order_of_metrics(model: keras.Model, logs: dict[str, Any]) -> Any:
    """What `evaluate` returns where it returns no dict: the one value, or a list."""
    return model._flatten_metrics_in_order(logs)


def inner_metrics(metric: keras.metrics.Metric) -> list[keras.metrics.Metric]:
    """Those of which a metric consists, as that which `compile()` makes of all."""
    compiled = getattr(metric, "metrics", None)
    inner = private(metric, METRICS_OF_METRIC) if compiled is None else compiled
    return list(inner)


def recurrent_states(model: keras.Model) -> list[keras.Variable]:
    """What layers with `stateful=True` keep from one batch for the next."""
    return [
        state
        for layer in model._flatten_layers()
        if getattr(layer, "stateful", False)
        for state in keras.tree.flatten(getattr(layer, "states", None))
        if is_keras_variable(state)
    ]


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Those of a model's random generators: the seed, and how often each has drawn."""
    weights = {id(variable) for variable in model.weights}
    return [
        variable
        for variable in model.variables
        if id(variable) not in weights
        and tuple(variable.shape) == (2,)
        and keras.backend.is_int_dtype(variable.dtype)
    ]


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """The axes over which a built layer takes mean and variance."""
    return list(private(layer, REDUCTION_AXES))


def train_function(model: keras.Model) -> Callable[[Any], Any]:
    """The function that runs one execution, made if there is none."""
    model.make_train_function()
    function: Callable[[Any], Any] = model.train_function
    return function


def set_train_function(model: keras.Model, function: Callable[..., Any] | None) -> None:
    """Replaces it; with None, Keras makes and traces a new one."""
    model.train_function = function


def build_on_batch(model: keras.Model, batch: Any) -> None:
    """Makes what a model, its optimizer and its metrics do not have yet, as Keras does.

    Args:
        model: It is compiled.
        batch: Inputs, targets and sample weights.
    """
    model._symbolic_build(data_batch=batch)


def keep_state_of_step(model: keras.Model, state: Sequence[Any]) -> None:
    """On JAX: what a model has as `fit` ends, if the step that was given it has failed.

    Args:
        model: Whose `fit` it is.
        state: Values of its variables: trained, others, the optimizer's, metrics'.
    """
    kinds = ("trainable", "non_trainable", "optimizer", "metrics")
    names = [f"{kind}_variables" for kind in kinds]
    private(model, STATE_IS_TAKEN_BACK)  # Else nobody would read it.
    setattr(model, STATE, dict(zip(names, state, strict=True)))
    setattr(model, STATE_IS_TAKEN_BACK, False)


def initial_epoch(model: keras.Model) -> int | None:
    """The epoch that a callback wants `fit` to begin with."""
    epoch = private(model, INITIAL_EPOCH)
    return None if epoch is None else int(epoch)


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Makes `fit` begin with that epoch."""
    private(model, INITIAL_EPOCH)  # Else nobody would read it.
    setattr(model, INITIAL_EPOCH, epoch)
