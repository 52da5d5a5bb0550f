"""What layers compute with that is no variable: constants, vocabularies, boundaries."""

import gc
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from ring_keras.keras_internals.variables import is_keras_variable, variable_key

__all__ = ["constants", "finalize_layers", "fixed_states"]

_WITH_VOCABULARY = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


def finalize_layers(variables: Iterable[Any]) -> None:
    """Has layers compute with values that were assigned to their variables.

    `Normalization`, as any layer with `finalize_state()`, computes with constants that
    it makes of its variables there. Keras calls it when it has loaded weights. What is
    traced already goes on with what it was traced with.

    Args:
        variables: Those that were assigned, of whichever layers.
    """
    own = [v for v in variables if is_keras_variable(v) and not v.trainable]
    if not own:
        return
    assigned = {variable_key(variable) for variable in own}
    # A variable does not know its layer.
    for one in gc.get_objects():
        if issubclass(type(one), keras.layers.Layer) and any(
            variable_key(weight) in assigned for weight in _finalized(one)
        ):
            one.finalize_state()


def constants(model: keras.Model) -> int:
    """A digest of what layers have made of their variables."""
    digest = 0
    for layer in model._flatten_layers():
        if _finalized(layer):
            digest = _digest(_constants(layer), digest)
    return digest


def fixed_states(model: keras.Model) -> list[tuple[str, str, int, list[Any]]]:
    """What the model's layers, at any depth, hold that is no variable.

    Returns:
        For each layer that has some its name, what it has, a digest of that, and the
        layer's weights, in an order that is the same for the same model.
    """
    found = []
    within: set[int] = set()
    for layer in model._flatten_layers():
        for what, values in _held(layer, is_within=id(layer) in within):
            found.append((layer.name, what, _digest(values), list(layer.weights)))
        if isinstance(layer, _WITH_VOCABULARY):  # TextVectorization has one inside.
            within |= {id(inner) for inner in layer._flatten_layers()}
    return found


def _held(
    layer: keras.layers.Layer, *, is_within: bool
) -> Iterator[tuple[str, list[Any]]]:
    if isinstance(layer, _WITH_VOCABULARY) and not is_within:
        yield "vocabulary", layer.get_vocabulary()
    weights: Any = getattr(layer, "idf_weights_const", None)
    if keras.ops.is_tensor(weights):
        yield "document frequencies", [keras.ops.convert_to_numpy(weights)]
    if isinstance(layer, keras.layers.Discretization):
        yield "bin boundaries", list(layer.bin_boundaries or ())
    if values := _constants(layer):
        yield "constants", values


def _finalized(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The weights of which it makes constants."""
    if not hasattr(layer, "finalize_state") or not getattr(layer, "built", False):
        return []
    return list(layer.weights)


def _constants(layer: keras.layers.Layer) -> list[Any]:
    if not hasattr(layer, "finalize_state"):
        return []
    values = [getattr(layer, name, None) for name in ("mean", "variance")]
    return [
        np.asarray(v)
        for v in values
        if keras.ops.is_tensor(v) or isinstance(v, np.ndarray)
    ]


def _digest(values: Iterable[Any], digest: int = 0) -> int:
    """The same for the same values, in one order."""
    for value in values:
        plain = value.tobytes() if isinstance(value, np.ndarray) else repr(value)
        digest = zlib.crc32(
            plain if isinstance(plain, bytes) else plain.encode(), digest
        )
    return digest
