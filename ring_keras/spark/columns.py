"""Columns of a data frame as what a model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as F  # noqa: N812

__all__ = ["ModelColumns", "numbers_of"]

# A batch of rows, by the names of columns.
Columns = Mapping[str, Any]

_NUMBERS = (types.IntegralType, types.FractionalType, types.BooleanType)


def numbers_of(frame: DataFrame, name: str) -> Column:
    """A column of numbers, or of arrays of numbers, in which nothing is null.

    Args:
        frame: Where it is.
        name: A column of numbers, of arrays of them, or of vectors.

    Raises:
        ValueError: If there is no such column, or it has something else in it.
    """
    if name not in frame.columns:
        raise ValueError(
            f"The data frame has no column {name!r}. It has: {', '.join(frame.columns)}"
        )
    column = F.col("`" + name.replace("`", "``") + "`")
    kind = frame.schema[name].dataType
    is_null = column.isNull()
    if isinstance(kind, VectorUDT):
        column = vector_to_array(column)
    elif isinstance(kind, types.ArrayType) and _is_number(kind.elementType):
        if kind.containsNull:
            is_null = is_null | F.exists(column, lambda number: number.isNull())
    elif not _is_number(kind):
        raise ValueError(
            f"Column {name!r} is of type {kind.simpleString()}. A model takes numbers, "
            "booleans, and arrays or vectors of them: make it one in a stage before."
        )
    message = F.lit(f"Column {name!r} has a null. Fill it in, or leave such rows out.")
    return F.when(is_null, F.raise_error(message)).otherwise(column)


def _is_number(kind: types.DataType) -> bool:
    return isinstance(kind, _NUMBERS) and not isinstance(kind, types.DecimalType)


@dataclass(frozen=True)
class _Tensor:
    """One of a model's inputs or outputs; its shape is that of a row."""

    shape: tuple[int | None, ...]
    dtype: str


class ModelColumns:
    """Which columns become which of a model's inputs and labels.

    Args:
        model: A functional one, or a sequential one that knows its input's shape.
        features: Names of columns: one for each input, or several for a single one,
            whose numbers are then put one behind the other.
        labels: Names of columns, one for each output.
        weights: The name of the column of sample weights, if there are any.
        lengths: Of the arrays in columns of arrays, by the columns' names, where they
            are known.

    Raises:
        ValueError: If they cannot belong together.
    """

    def __init__(
        self,
        model: keras.Model,
        features: Sequence[str],
        labels: Sequence[str],
        weights: str | None = None,
        lengths: Mapping[str, int] | None = None,
    ) -> None:
        inputs, outputs = _tensors(model, "inputs"), _tensors(model, "outputs")
        self._features, self._labels, self._weights = features, labels, weights
        self._lengths = lengths or {}
        if not features or len(inputs) not in (1, len(features)):
            raise ValueError(
                f"The model has {len(inputs)} inputs, so `feature_cols` needs as many "
                "columns, in that order; several for a single input are put one behind "
                f"the other. Received: feature_cols={list(features)!r}"
            )
        if len(outputs) != len(labels):
            raise ValueError(
                f"The model has {len(outputs)} outputs, so `label_cols` needs as many "
                f"columns, in that order. Received: label_cols={list(labels)!r}"
            )
        self._inputs, self._outputs = inputs, outputs
        self._input_structure = _structure(model, "input")
        self._output_structure = _structure(model, "output")

    def names(self) -> list[str]:
        """Of all columns, each once."""
        weights = [] if self._weights is None else [self._weights]
        return list(dict.fromkeys([*self._features, *self._labels, *weights]))

    def inputs_of(self, columns: Columns) -> Any:
        """What the model is called with.

        Args:
            columns: Arrays or tensors, of shape (rows,) or (rows, length).

        Raises:
            ValueError: If a column's numbers do not fill the input of its own.
        """
        arrays = [self._tensor(columns, name) for name in self._features]
        if len(arrays) > len(self._inputs):
            arrays = [tf.cast(array, self._inputs[0].dtype) for array in arrays]
            columns_of = [a[:, None] if a.shape.rank == 1 else a for a in arrays]
            arrays = [tf.concat(columns_of, axis=1)]
        shaped = [
            _shaped(array, tensor, self._features)
            for array, tensor in zip(arrays, self._inputs, strict=True)
        ]
        return keras.tree.pack_sequence_as(self._input_structure, shaped)

    def example_of(self, columns: Columns) -> tuple[Any, ...]:
        """Inputs and labels, and the weights if there are any; see `inputs_of`."""
        labels = []
        for name, tensor in zip(self._labels, self._outputs, strict=True):
            label = self._tensor(columns, name)
            if _size(label.shape[1:]) == _size(tensor.shape):
                label = tf.reshape(label, (tf.shape(label)[0], *tensor.shape))
            labels.append(label)
        example = (
            self.inputs_of(columns),
            keras.tree.pack_sequence_as(self._output_structure, labels),
        )
        if self._weights is None:
            return example
        return (*example, tf.cast(self._tensor(columns, self._weights), tf.float32))

    def _tensor(self, columns: Columns, name: str) -> tf.Tensor:
        tensor = tf.convert_to_tensor(columns[name])
        if name in self._lengths:
            return tf.ensure_shape(tensor, (None, self._lengths[name]))
        return tensor

    def predictions_of(self, outputs: Any) -> list[np.ndarray[Any, Any]]:
        """Of each output, doubles of shape (rows,) or (rows, size)."""
        arrays = [
            np.asarray(array, np.float64) for array in keras.tree.flatten(outputs)
        ]
        return [
            array.reshape(len(array), -1)
            if _size(tensor.shape) != 1
            else array.reshape(len(array))
            for array, tensor in zip(arrays, self._outputs, strict=True)
        ]

    def is_scalar(self) -> list[bool]:
        """Of each output, whether it is a single number."""
        return [_size(tensor.shape) == 1 for tensor in self._outputs]


def _tensors(model: keras.Model, which: str) -> list[_Tensor]:
    tensors = getattr(model, which, None)
    if not tensors:
        raise ValueError(
            f"The model {model.name!r} does not know its {which}. Take a functional "
            "one, or a Sequential that begins with keras.Input(shape)."
        )
    return [_Tensor(tuple(each.shape[1:]), each.dtype) for each in tensors]


def _structure(model: keras.Model, which: str) -> Any:
    """As the model nests its tensors, with zeros in their place."""
    if isinstance(model, keras.Sequential):
        return 0
    nested = keras.tree.map_structure(lambda _: 0, getattr(model, which))
    return keras.tree.lists_to_tuples(nested)  # A list is one tensor to tf.data.


def _size(shape: Sequence[int | None]) -> int | None:
    """How many numbers; None: any number."""
    sizes = [size for size in shape if size is not None]
    return None if len(sizes) < len(shape) else int(np.prod(sizes))


def _shaped(tensor: tf.Tensor, target: _Tensor, names: Sequence[str]) -> tf.Tensor:
    """As the input `target`, in which one size may be unknown."""
    tensor = tf.cast(tensor, target.dtype)
    row = tensor.shape[1:]
    if None in target.shape and len(row) == len(target.shape):
        return tensor
    if _size(target.shape) != _size(row):
        raise ValueError(
            f"An input of the model takes {target.shape} numbers of a row, and a row "
            f"has {tuple(row) or 1} in the column for it. Received: "
            f"feature_cols={list(names)}"
        )
    return tf.reshape(tensor, (tf.shape(tensor)[0], *target.shape))
