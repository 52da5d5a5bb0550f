"""What ways to train are measured with: several dtypes, and several buckets.

Small as it is, its gradients travel in four collectives of two dtypes, because the
ranks that measure have `ENVIRONMENT`.
"""

from __future__ import annotations

from typing import Any

import keras

from support import training

# The largest gradient has 192 bytes.
ENVIRONMENT = {"RING_KERAS_BUCKET_SIZE_BYTES": "200"}


def build(
    seed: int, cls: type[keras.Model] | None = None, **layer_kwargs: Any
) -> keras.Model:
    """A network whose initial weights depend on `seed` alone."""
    return training.assemble(
        seed,
        lambda: [
            keras.layers.Dense(8, activation="tanh", **layer_kwargs),
            keras.layers.Dense(5, activation="tanh", dtype="float64"),
            keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
        ],
        cls,
    )
