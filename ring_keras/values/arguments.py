"""What collectives on tensors and on arrays share in reading their arguments."""

from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["require_collective_dtype", "to_communicator", "to_reduce_op"]

_FLOATING = ("float16", "bfloat16", "float32", "float64")
# The names are those of NumPy and of TensorFlow.
_COLLECTIVE_DTYPES = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "int32",
    "int64",
    *_FLOATING,
    "bool",
)


def require_collective_dtype(dtype: str, function: str) -> None:
    """Raises TypeError for element types that no collective moves."""
    if dtype not in _COLLECTIVE_DTYPES:
        raise TypeError(
            "[RK403] "
            f"ring_keras.{function} moves tensors of {', '.join(_COLLECTIVE_DTYPES)}. "
            f"Received: dtype={dtype}. Cast the tensor first."
        )


def to_reduce_op(op: ReduceOp | str, dtype: str, function: str) -> str:
    """The native name of `op`, if it means something for `dtype`."""
    reduce_op = ReduceOp(op)
    if reduce_op is ReduceOp.ADASUM:
        raise ValueError(
            "[RK403] "
            f"ring_keras.{function} has no op='adasum'; ring_keras.allreduce and "
            "ring_keras.grouped_allreduce have, for dense floating-point tensors. "
            f"Received: op='adasum', dtype={dtype}"
        )
    if reduce_op is ReduceOp.AVERAGE and dtype not in _FLOATING:
        raise ValueError(
            "[RK402] "
            f"ring_keras.{function} cannot average {dtype}: the mean of "
            "integers is usually no integer. Use op=ring_keras.Sum, or cast to a "
            f"floating-point type. Received: op='average', dtype={dtype}"
        )
    if dtype == "bool" and reduce_op not in (ReduceOp.MIN, ReduceOp.MAX):
        raise ValueError(
            "[RK403] "
            f"ring_keras.{function} on bool takes op=ring_keras.Min (all ranks) "
            "or op=ring_keras.Max (any rank). "
            f"Received: op={reduce_op.value!r}, dtype=bool"
        )
    return str(reduce_op)


def to_communicator(process_set: ProcessSet | None) -> int:
    """Number of the communicator; the whole job for None."""
    return (process_set or global_process_set).communicator_id()
