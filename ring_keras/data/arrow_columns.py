"""Columns of Arrow tables as tensors. Needs pyarrow."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

__all__ = ["Column"]

_BYTES = ("string", "large_string", "binary", "large_binary")


@dataclass(frozen=True)
class Column:
    """How the values of a column become items of a dataset.

    Lists of any length travel as strings of bytes, which tf.data takes apart into rows
    many times as fast as it does ragged tensors.

    Attributes:
        name: Of the column.
        dtype: Of a value, or of the values in a list.
        shape: Of an item: (), (k,) for lists of fixed size, (None,) for other lists.
    """

    name: str
    dtype: tf.DType
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, field: Any) -> "Column":
        """That of a field of a schema.

        Raises:
            ValueError: If there are no tensors of its type.
        """
        kind = field.type
        shape: tuple[int | None, ...] = ()
        if pa.types.is_fixed_size_list(kind):
            kind, shape = kind.value_type, (kind.list_size,)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind, shape = kind.value_type, (None,)
        dtype = _dtype_of(kind)
        if dtype is None or (shape == (None,) and dtype not in _DECODED):
            raise ValueError(
                f"column {field.name!r} has values of the type {field.type}, of which "
                "there are no tensors: write it as numbers, strings or lists of "
                "numbers, or leave it out by `columns`"
            )
        return cls(field.name, dtype, shape)

    @property
    def is_decoded(self) -> bool:
        """Whether `item` does anything."""
        return self.shape == (None,)

    def window_spec(self) -> tf.TensorSpec:
        """Of what `values` returns."""
        if self.is_decoded:
            return tf.TensorSpec([None], tf.string)
        return tf.TensorSpec([None, *self.shape], self.dtype)

    def values(self, column: Any) -> np.ndarray[Any, Any]:
        """One item for each row of a `pyarrow.ChunkedArray`.

        Raises:
            ValueError: If some are null.
        """
        self._require_none_null(column)
        if not self.shape:
            return self._flat(column)
        lists = column.combine_chunks()
        inside = lists.flatten()
        self._require_none_null(inside)
        flat = self._flat(inside)
        if self.is_decoded:
            return _as_bytes(flat, lists.value_lengths())
        return flat.reshape(len(lists), *self.shape)

    def item(self, value: tf.Tensor) -> tf.Tensor:
        """A row of `values` as it is in the dataset."""
        if self.is_decoded:
            return tf.io.decode_raw(value, self.dtype)
        return value

    def _flat(self, array: Any) -> np.ndarray[Any, Any]:
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        if self.dtype == tf.string:
            array = array.cast(pa.large_binary())
        if isinstance(array, pa.ChunkedArray):
            values = array.to_numpy()
        else:
            values = array.to_numpy(zero_copy_only=False)
        found: np.ndarray[Any, Any] = values
        return found

    def _require_none_null(self, array: Any) -> None:
        if array.null_count:
            raise ValueError(
                f"column {self.name!r} has {array.null_count} nulls here, for which "
                "tensors have no value: fill them in, leave their rows out when you "
                "write the files, or leave the column out by `columns`"
            )


# What tf.io.decode_raw knows.
_DECODED = (
    tf.bool,
    tf.float16,
    tf.float32,
    tf.float64,
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint16,
)


def _dtype_of(kind: Any) -> tf.DType | None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) in _BYTES:
        return tf.string
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if any(test(kind) for test in numeric):
        return tf.as_dtype(kind.to_pandas_dtype())
    return None


def _as_bytes(values: np.ndarray[Any, Any], lengths: Any) -> np.ndarray[Any, Any]:
    """Lists of these lengths, each the bytes of its values."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=offsets[1:])
    buffers = [None, *map(pa.py_buffer, (offsets * values.itemsize, values))]
    strings = pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)
    found: np.ndarray[Any, Any] = strings.to_numpy(zero_copy_only=False)
    return found
