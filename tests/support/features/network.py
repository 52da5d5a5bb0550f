"""What ways to train are measured with: several dtypes, and several buckets.

Small as it is, its gradients travel in four collectives of two dtypes, because the
ranks that measure have `ENVIRONMENT`.
"""

from __future__ import annotations

from typing import Any

import keras

# The largest gradient has 192 bytes.
ENVIRONMENT = {"RING_KERAS_BUCKET_SIZE_BYTES": "200"}


def build(
    seed: int, cls: type[keras.Model] | None = None, **layer_kwargs: Any
) -> keras.Model:
    """A network whose initial weights depend on `seed` alone."""
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Dense(8, activation="tanh", **layer_kwargs),
        keras.layers.Dense(5, activation="tanh", dtype="float64"),
        keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
    ]
    if cls is None:
        return keras.Sequential(layers)
    inputs = keras.Input((6,))
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    return cls(inputs, outputs)
