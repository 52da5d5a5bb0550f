"""What each rank has for itself of a model, and of what optimizers keep for that."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import keras

from ring_keras import keras_internals as internals

__all__ = [
    "IsLocal",
    "kept_for_local",
    "layers_of",
    "refuse_global_clipnorm",
]

IsLocal: TypeAlias = Callable[[Any], bool]
"""Whether each rank has its own value of a variable, by intent."""


def layers_of(
    layers: keras.layers.Layer | Iterable[keras.layers.Layer] | None,
) -> tuple[keras.layers.Layer, ...]:
    """The argument `local_layers` as programs give it.

    Raises:
        ValueError: If it is something else.
    """
    if layers is None:
        return ()
    if isinstance(layers, keras.layers.Layer):
        return (layers,)
    layers = tuple(layers)
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(
                "`local_layers` must be a Keras layer or a list of them. "
                f"Received: {layer!r}"
            )
    return layers


def refuse_global_clipnorm(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises if one that has local layers clips by the norm of all gradients.

    Raises:
        ValueError: If it does.
    """
    if optimizer.global_clipnorm:
        raise ValueError(
            "[RK420] "
            "`global_clipnorm` compares the norm of all gradients, which "
            "`local_layers` make a different one on every rank, so that the "
            "ranks' common weights would drift apart. Clip by `clipnorm` or "
            f"`clipvalue`. Received: global_clipnorm={optimizer.global_clipnorm}"
        )


def kept_for_local(
    optimizers: Iterable[keras.optimizers.Optimizer],
    weights: Sequence[Any],
    is_local: IsLocal,
) -> IsLocal:
    """Says of variables of optimizers whether they are kept for a local weight.

    Args:
        optimizers: They may be built or not.
        weights: What they may train.
        is_local: Of weights.
    """
    local = {_name_in_optimizers(weight) for weight in weights if is_local(weight)}
    if not local:
        return lambda variable: False
    others = {_name_in_optimizers(weight) for weight in weights} - local
    # Adafactor does not name these after their weights.
    means = {
        id(mean)
        for optimizer in internals.innermost(optimizers)
        for mean, weight in internals.means_of(optimizer)
        if is_local(weight)
    }
    return lambda variable: id(variable) in means or _is_of(variable, local, others)


def _is_of(variable: Any, names: set[str], others: set[str]) -> bool:
    """Whether an optimizer keeps it for a weight with one of these names.

    Keras has named it after the weight: of several names that fit, it is the longest.
    """
    fitting = [name for name in names | others if variable.name.startswith(f"{name}_")]
    return bool(fitting) and max(fitting, key=len) in names


def _name_in_optimizers(weight: Any) -> str:
    name = str(getattr(weight, "path", None) or weight.name)
    return name.replace("/", "_").replace(":", "_")
