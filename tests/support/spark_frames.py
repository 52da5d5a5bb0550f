"""Data frames of Spark for tests of the estimator, and models for them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from pyspark.sql import DataFrame, SparkSession

ROWS = 64


def arrays(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels, and weights of the examples."""
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, 4))
    y = x @ [1.0, -2.0, 3.0, 0.5] + random.normal(size=rows)
    return x, y, random.uniform(0.5, 2.0, rows)


def frame(spark: SparkSession, **more: Any) -> DataFrame:
    """Columns id, x, y, w and `more`, in four partitions."""
    x, y, weights = arrays()
    columns = {"id": range(ROWS), "x": x.tolist(), "y": y.tolist()}
    columns |= {"w": weights.tolist(), **more}
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return spark.createDataFrame(rows, list(columns)).repartition(4, "id")


def model() -> keras.Model:
    """Always with the same weights."""
    keras.utils.set_random_seed(5)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )


def trained_alone(
    epochs: int, rows: np.ndarray | slice = slice(None), weighted: bool = False
) -> keras.Model:
    """By this process, each step on all of these rows."""
    x, y, weights = (array[rows] for array in arrays())
    alone = model()
    alone.compile(keras.optimizers.SGD(0.05), "mse")
    alone.fit(
        x,
        y,
        sample_weight=weights if weighted else None,
        batch_size=len(x),
        epochs=epochs,
        verbose=0,
    )
    return alone


def require_same_weights(one: keras.Model, other: keras.Model, atol: float) -> None:
    for mine, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)
