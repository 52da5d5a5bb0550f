"""Collectives on TensorFlow tensors, with Horovod's arguments.

Everywhere, these are taken and mean nothing: `device_dense` and
`device_sparse`, since a collective runs where its tensor is;
`ignore_name_scope`, since names have no scope: ranks meet in the order of
their calls. `session` must be None, since there are none.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import ring_keras as ring
from ring_keras.horovod._absent import absent, refuse_unless_default
from ring_keras.job.process_set import ProcessSet, find_process_set, global_process_set
from ring_keras.ops.adasum import WIRE_DTYPES
from ring_keras.ops.compression import Compression
from ring_keras.ops.reduce_op import Average, ReduceOp, Sum

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
    "to_op",
]

_NO_SESSIONS = "There are no sessions in TensorFlow 2; call it eagerly."


def to_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The reduction that `op`, or Horovod's older `average`, asks for."""
    if op is not None and average is not None:
        raise ValueError(
            "`op` takes the place of `average`: give one of them. "
            f"Received: op={op!r}, average={average!r}"
        )
    if op is not None:
        return op
    return Sum if average is False else Average


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compression = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """See `ring_keras.allreduce`."""
    return ring.allreduce(
        tensor,
        to_op(op, average),
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        process_set=process_set,
    )


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compression = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """See `ring_keras.grouped_allreduce`."""
    return ring.grouped_allreduce(
        tensors,
        to_op(op, average),
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        process_set=process_set,
    )


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """See `ring_keras.allgather`."""
    return ring.allgather(tensor, name=name, process_set=process_set)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gathers each of the tensors; see `ring_keras.allgather`."""
    return [
        ring.allgather(tensor, name=_member(name, index), process_set=process_set)
        for index, tensor in enumerate(tensors)
    ]


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Compression = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """See `ring_keras.reducescatter`.

    With `compression`, a float32 tensor is rounded before it, within a host
    too; sums are made in float32.
    """
    tensor = tf.convert_to_tensor(tensor)
    dtype = tensor.dtype
    if dtype == tf.float32:
        tensor = tf.cast(tensor, WIRE_DTYPES.get(Compression(compression), dtype))
    part = ring.reducescatter(
        tensor,
        op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )
    return tf.cast(part, dtype)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Compression = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduces and scatters each of the tensors; see `reducescatter`."""
    return [
        reducescatter(
            tensor,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
        )
        for tensor in tensors
    ]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See `ring_keras.alltoall`."""
    return ring.alltoall(tensor, splits, name=name, process_set=process_set)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """See `ring_keras.broadcast`."""
    return ring.broadcast(tensor, root_rank, name=name, process_set=process_set)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Broadcasts variables in place, and returns them."""
    variables = list(variables)
    ring.broadcast_variables(variables, root_rank, name=name, process_set=process_set)
    return variables


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """See `ring_keras.broadcast_variables`, which is in place always."""
    ring.broadcast_variables(list(variables), root_rank, process_set=process_set)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See `ring_keras.broadcast_object`, which takes plain values alone."""
    refuse_unless_default("session", session, None, _NO_SESSIONS)
    return ring.broadcast_object(obj, root_rank, name=name, process_set=process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that broadcasts the object it gets."""

    def function(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return function


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """See `ring_keras.allgather_object`, which takes plain values alone."""
    refuse_unless_default("session", session, None, _NO_SESSIONS)
    return ring.allgather_object(obj, name=name, process_set=process_set)


def broadcast_global_variables(root_rank: int) -> None:
    """Not there: TensorFlow 2 has no collection of all variables."""
    absent(
        "broadcast_global_variables()",
        "Call broadcast_variables() with those of the model and the optimizer, or "
        "give fit() a BroadcastGlobalVariablesCallback.",
    )


class BroadcastGlobalVariablesHook:
    """Not there: TensorFlow 2 has no sessions, and Keras 3 no estimators."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        absent(
            "BroadcastGlobalVariablesHook",
            "Give fit() a BroadcastGlobalVariablesCallback.",
        )


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """See `ring_keras.barrier`."""
    ring.barrier(process_set=process_set)


def join() -> int:
    """See `ring_keras.join`."""
    return ring.join()


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The size of a process set, as of now, as a tensor."""
    return tf.constant(find_process_set(process_set_id).size(), tf.int32, name=name)


def process_set_included_op(
    process_set_id: int = 0, name: str | None = None
) -> tf.Tensor:
    """1 if this process is in a process set, else 0, as a tensor."""
    included = find_process_set(process_set_id).included()
    return tf.constant(int(included), tf.int32, name=name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank, as a tensor."""
    return tf.constant(ring.rank(), tf.int32, name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's local rank, as a tensor."""
    return tf.constant(ring.local_rank(), tf.int32, name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this host, as a tensor."""
    return tf.constant(ring.local_size(), tf.int32, name=name)


def _member(name: str | None, index: int) -> str | None:
    return None if name is None else f"{name}/{index}"
