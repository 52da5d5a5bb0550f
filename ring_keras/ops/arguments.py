"""What the collectives on tensors share in reading their arguments."""

from typing import Any, TypeAlias

import tensorflow as tf

from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.arguments import require_collective_dtype
from ring_keras.values.compression import Compression

TensorLike: TypeAlias = Any
"""Anything `tf.convert_to_tensor` takes: tensors, variables, arrays, numbers."""

Factor: TypeAlias = float | tf.Tensor
"""A number, or a scalar tensor whose value may change from step to step."""

_WIRE_DTYPES = {
    Compression.none: "none",
    Compression.bf16: "bfloat16",
    Compression.fp16: "float16",
}


def to_tensor(value: TensorLike, function: str) -> tf.Tensor:
    """Converts `value`. Raises TypeError as `require_collective_dtype` does."""
    tensor = tf.convert_to_tensor(value)
    require_collective_dtype(tensor.dtype.name, function)
    return tensor


def to_wire_dtype(
    compression: Compression | str, dtype: tf.DType, function: str
) -> str:
    """The type in which tensors of `dtype` travel, "none" for their own."""
    try:
        compression = Compression(compression)
    except ValueError:
        names = ", ".join(repr(member.value) for member in Compression)
        raise ValueError(
            f"`compression` of ring_keras.{function} must be a Compression or one "
            f"of {names}. Received: compression={compression!r}"
        ) from None
    return _WIRE_DTYPES[compression] if dtype == tf.float32 else "none"


def to_factor(value: Factor) -> tf.Tensor:
    """A scalar of float64: exact for every float, whatever the tensor's type.

    In host memory, where the engine reads it: from a GPU it would come by a copy,
    which waits for all that the GPU has been given.
    """
    with tf.device("CPU:0"):
        if tf.is_tensor(value):
            return tf.cast(value, tf.float64)
        return tf.constant(value, tf.float64)


def to_root(root_rank: int, process_set: ProcessSet | None) -> int:
    """Position of rank `root_rank` of the job in the process set."""
    return (process_set or global_process_set).position_of(int(root_rank))
