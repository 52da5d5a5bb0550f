"""A trained Keras model, as a stage of Spark ML."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import pandas as pd
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ring_keras.spark.columns import ModelColumns, numbers_of
from ring_keras.spark.keras_file import load_model, saved_model
from ring_keras.spark.params import ModelParams, with_accessors
from ring_keras.spark.saved_stage import StageReader, StageWriter

__all__ = ["KerasModel"]

_OUTPUTS = "ring_keras_outputs"


@with_accessors
class KerasModel(Model, ModelParams, MLReadable, MLWritable):
    """Adds what a Keras model predicts to a data frame.

    An output of one number becomes a column of doubles, any other one a column of
    vectors. `KerasEstimator.fit` makes these; so can you, of a model that was trained
    elsewhere.

    Args:
        model: A Keras model, or the contents of its `.keras` file.
        history: What `fit` returned on rank 0.
        run_id: Of the run that trained it.
        params: `feature_cols` and `label_cols` are needed; `output_cols`, `batch_size`
            and `custom_objects` may be given.

    Raises:
        TypeError: If there is no such parameter, or a value is of another type.
        ValueError: If a value is not what it must be.
    """

    def __init__(
        self,
        model: keras.Model | bytes = b"",
        history: Mapping[str, Sequence[float]] | None = None,
        run_id: str | None = None,
        **params: Any,
    ) -> None:
        super().__init__()
        self._setDefault(
            **dict.fromkeys(("feature_cols", "label_cols", "output_cols")),
            batch_size=32,
            custom_objects={},
        )
        self._content = saved_model(model) if isinstance(model, keras.Model) else model
        self._history, self._run_id = dict(history or {}), run_id
        self.setParams(**params)

    def getModel(self) -> keras.Model:  # noqa: N802  As in Spark ML.
        """The Keras model, another one at each call."""
        return load_model(
            self._content, self.getOrDefault("custom_objects"), compile=True
        )

    def getHistory(self) -> dict[str, Sequence[float]]:  # noqa: N802
        """Metrics by name, a number for each epoch of the `fit` that made this."""
        return self._history

    def getRunId(self) -> str | None:  # noqa: N802
        """Of the run that trained it."""
        return self._run_id

    def getOutputCols(self) -> list[str]:  # noqa: N802
        """The columns that `transform` adds."""
        given: list[str] | None = self.getOrDefault("output_cols")
        if given is not None:
            return given
        return [f"{label}__output" for label in self.getOrDefault("label_cols")]

    def write(self) -> StageWriter:
        """For `write().overwrite().save(path)`. Custom objects are not saved."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """For `load(path)`; `setCustomObjects` follows, if it has any."""
        return StageReader(cls)

    def saved_parts(self) -> tuple[dict[str, Any], dict[str, Any], bytes]:
        """What a `StageWriter` writes: parameters, what else is known, the model."""
        plain = {param.name: value for param, value in self._paramMap.items()}
        plain.pop("custom_objects", None)
        known = {"history": self._history, "run_id": self._run_id}
        return plain, known, self._content

    def take_saved(
        self, params: dict[str, Any], known: dict[str, Any], content: bytes
    ) -> None:
        """Becomes what was saved."""
        self._content = content
        self._history, self._run_id = known["history"], known["run_id"]
        self.setParams(**params)

    def _transform(self, frame: DataFrame) -> DataFrame:
        self._require("feature_cols", "label_cols")
        predictor = _Predictor(
            self._content,
            self.getOrDefault("custom_objects"),
            self.getOrDefault("feature_cols"),
            self.getOrDefault("label_cols"),
            self.getOrDefault("batch_size"),
        )
        are_scalar = predictor.columns.is_scalar()
        outputs = self.getOutputCols()
        if len(outputs) != len(are_scalar) or set(outputs) & set(frame.columns):
            raise ValueError(
                f"`output_cols` must name {len(are_scalar)} new columns, one for each "
                f"output of the model. Received: output_cols={outputs!r}, and a data "
                f"frame that has {', '.join(frame.columns)}"
            )
        kinds = ["double" if is_scalar else "array<double>" for is_scalar in are_scalar]
        schema = ", ".join(f"o{i} {kind}" for i, kind in enumerate(kinds))
        predict = F.pandas_udf(predictor.predict, schema)
        features = [
            numbers_of(frame, name).alias(f"c{i}")
            for i, name in enumerate(self.getOrDefault("feature_cols"))
        ]
        predicted = frame.select("*", predict(F.struct(*features)).alias(_OUTPUTS))
        for i, (name, is_scalar) in enumerate(zip(outputs, are_scalar, strict=True)):
            output = F.col(_OUTPUTS)[f"o{i}"]
            predicted = predicted.withColumn(
                name, output if is_scalar else array_to_vector(output)
            )
        return predicted.drop(_OUTPUTS)


class _Predictor:
    """Loads the model where it is used: once in each of Spark's Python processes.

    Args:
        content: Of a `.keras` file.
        custom_objects: That it needs.
        features: The names of columns.
        labels: The names of columns.
        batch_size: Rows that the model gets at once.
    """

    def __init__(
        self,
        content: bytes,
        custom_objects: Mapping[str, Any],
        features: Sequence[str],
        labels: Sequence[str],
        batch_size: int,
    ) -> None:
        self._content, self._custom_objects = content, custom_objects
        self._features, self._labels = features, labels
        self._batch_size = batch_size

    @property
    def columns(self) -> ModelColumns:
        """Of the model."""
        return ModelColumns(self._model(), self._features, self._labels)

    def predict(self, batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The outputs, for the columns c0, c1..., which are the features."""
        model, columns = self._model(), self.columns
        for batch in batches:
            inputs = columns.inputs_of(
                {
                    name: _to_array(batch[f"c{i}"], name)
                    for i, name in enumerate(self._features)
                }
            )
            outputs = model.predict(inputs, batch_size=self._batch_size, verbose=0)
            yield pd.DataFrame(
                {
                    f"o{i}": list(output)
                    for i, output in enumerate(columns.predictions_of(outputs))
                }
            )

    def _model(self) -> keras.Model:
        return _loaded(self._content, tuple(self._custom_objects.items()))


@functools.lru_cache(maxsize=1)
def _loaded(content: bytes, custom_objects: tuple[tuple[str, Any], ...]) -> keras.Model:
    return load_model(content, dict(custom_objects), compile=False)


def _to_array(values: pd.Series, name: str) -> np.ndarray[Any, Any]:
    if values.dtype != object:
        return np.asarray(values)
    try:
        return np.stack(values.to_list())
    except ValueError:
        raise ValueError(
            f"The arrays of column {name!r} must all have the same length."
        ) from None
