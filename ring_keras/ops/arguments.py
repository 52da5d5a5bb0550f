"""What the collectives share in reading their arguments."""

from typing import Any, TypeAlias

import tensorflow as tf

from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.ops.compression import Compression
from ring_keras.ops.reduce_op import ReduceOp

TensorLike: TypeAlias = Any
"""Anything `tf.convert_to_tensor` takes: tensors, variables, arrays, numbers."""

Factor: TypeAlias = float | tf.Tensor
"""A number, or a scalar tensor whose value may change from step to step."""

COLLECTIVE_DTYPES = (
    tf.uint8,
    tf.int8,
    tf.uint16,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.bool,
)

_WIRE_DTYPES = {
    Compression.none: "none",
    Compression.bf16: "bfloat16",
    Compression.fp16: "float16",
}


def to_tensor(value: TensorLike, function: str) -> tf.Tensor:
    """Converts `value`. Raises TypeError as `require_collective_dtype` does."""
    tensor = tf.convert_to_tensor(value)
    require_collective_dtype(tensor.dtype, function)
    return tensor


def require_collective_dtype(dtype: tf.DType, function: str) -> None:
    """Raises TypeError for element types that no collective moves."""
    if dtype not in COLLECTIVE_DTYPES:
        names = ", ".join(dtype.name for dtype in COLLECTIVE_DTYPES)
        raise TypeError(
            "[RK403] "
            f"ring_keras.{function} moves tensors of {names}. "
            f"Received: dtype={dtype.name}. Cast the tensor first."
        )


def to_reduce_op(op: ReduceOp | str, dtype: tf.DType, function: str) -> str:
    """The native name of `op`, if it means something for `dtype`."""
    reduce_op = ReduceOp(op)
    if reduce_op is ReduceOp.ADASUM:
        raise ValueError(
            "[RK403] "
            f"ring_keras.{function} has no op='adasum'; ring_keras.allreduce and "
            "ring_keras.grouped_allreduce have, for dense floating-point tensors. "
            f"Received: op='adasum', dtype={dtype.name}"
        )
    if reduce_op is ReduceOp.AVERAGE and not dtype.is_floating:
        raise ValueError(
            "[RK402] "
            f"ring_keras.{function} cannot average {dtype.name}: the mean of "
            "integers is usually no integer. Use op=ring_keras.Sum, or cast to a "
            f"floating-point type. Received: op='average', dtype={dtype.name}"
        )
    if dtype == tf.bool and reduce_op not in (ReduceOp.MIN, ReduceOp.MAX):
        raise ValueError(
            "[RK403] "
            f"ring_keras.{function} on bool takes op=ring_keras.Min (all ranks) "
            "or op=ring_keras.Max (any rank). "
            f"Received: op={reduce_op.value!r}, dtype=bool"
        )
    return str(reduce_op)


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


def to_communicator(process_set: ProcessSet | None) -> int:
    """Number of the communicator; the whole job for None."""
    return (process_set or global_process_set).communicator_id()


def to_root(root_rank: int, process_set: ProcessSet | None) -> int:
    """Position of rank `root_rank` of the job in the process set."""
    return (process_set or global_process_set).position_of(int(root_rank))
