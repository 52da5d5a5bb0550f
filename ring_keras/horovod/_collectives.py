"""Collectives on TensorFlow tensors, with Horovod's arguments and results.

Everywhere, these are taken and mean nothing: `device_dense` and
`device_sparse`, since a collective runs where its tensor is;
`ignore_name_scope`, since names have no scope: ranks meet in the order of
their calls, and in the graph of a session by the name of the tensor.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import ring_keras as ring
from ring_keras.horovod._absent import AbsentError
from ring_keras.horovod._compression import (
    Compression,
    compressor_of,
    native_and_own,
)
from ring_keras.horovod._gradient_factor import with_gradient_times
from ring_keras.horovod._op import to_op
from ring_keras.horovod._reduction import name_of_member, reduce_tensors
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.ops.allgather import allgather_all
from ring_keras.ops.allreduce import gather_indices
from ring_keras.ops.request_names import name_after
from ring_keras.values.reduce_op import Average, ReduceOp, Sum

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "check_root",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """See `ring_keras.allreduce`, which averages no integers; this rounds to zero."""
    if isinstance(tensor, tf.IndexedSlices):
        return grouped_allreduce(
            [tensor],
            average,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
            process_set=process_set,
        )[0]
    name = name or name_after([tensor], "allreduce")
    native, compressor = native_and_own(compression)

    def reduce(
        tensors: Sequence[tf.Tensor], op: ReduceOp, **others: Any
    ) -> list[tf.Tensor]:
        return [
            ring.allreduce(
                tensors[0], op, compression=native, process_set=process_set, **others
            )
        ]

    return reduce_tensors(
        [tensor],
        reduce,
        name=name,
        op=to_op(op, average),
        compressor=compressor,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        size=process_set.size(),
    )[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Each of the tensors reduced; see `allreduce`."""
    if not tensors:
        return list(tensors)
    op = to_op(op, average)
    name = name or name_after(tensors, "grouped_allreduce")
    dense = [i for i, t in enumerate(tensors) if not isinstance(t, tf.IndexedSlices)]
    if len(dense) < len(tensors):
        _check_slices(op, prescale_factor, postscale_factor)
    reduced = [
        _allreduce_slices(tensor, op, name_of_member(name, index), process_set)
        if isinstance(tensor, tf.IndexedSlices)
        else tensor
        for index, tensor in enumerate(tensors)
    ]
    native, compressor = native_and_own(compression)
    results = reduce_tensors(
        [tensors[index] for index in dense],
        functools.partial(
            ring.grouped_allreduce, compression=native, process_set=process_set
        ),
        name=name,
        op=op,
        compressor=compressor,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        size=process_set.size(),
    )
    for index, tensor in zip(dense, results, strict=True):
        reduced[index] = tensor
    return reduced


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """See `ring_keras.reducescatter`, which has another gradient.

    With `compression`, a tensor is rounded before it, within a host too; sums are
    made in float32.
    """
    name = name or name_after([tensor], "reducescatter")

    def scatter(
        tensors: Sequence[tf.Tensor], op: ReduceOp, **others: Any
    ) -> list[tf.Tensor]:
        return [ring.reducescatter(tensors[0], op, process_set=process_set, **others)]

    tensor = tf.convert_to_tensor(tensor)
    size = process_set.size()
    if op in (Sum, Average):
        tensor = with_gradient_times(size, tensor)
    (part,) = reduce_tensors(
        [tensor],
        scatter,
        name=name,
        op=op,
        compressor=compressor_of(compression),
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        size=size,
    )
    return part


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
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


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """See `ring_keras.allgather`; the gradient is the average, not the sum."""
    name = name or name_after([tensor], "allgather")
    tensor = with_gradient_times(1 / process_set.size(), tf.convert_to_tensor(tensor))
    return ring.allgather(tensor, name=name, process_set=process_set)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gathers each of the tensors; see `allgather`."""
    return [
        allgather(tensor, name_of_member(name, index), process_set=process_set)
        for index, tensor in enumerate(tensors)
    ]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """See `ring_keras.broadcast`; the root's gradient is the average, not the sum."""
    check_root(root_rank, process_set)
    name = name or name_after([tensor], "broadcast")
    tensor = with_gradient_times(1 / process_set.size(), tf.convert_to_tensor(tensor))
    return ring.broadcast(tensor, root_rank, name=name, process_set=process_set)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See `ring_keras.alltoall`; rows behind those that `splits` counts stay here."""
    name = name or name_after([tensor], "alltoall")
    tensor = tf.convert_to_tensor(tensor)
    if splits is not None:
        splits = tf.convert_to_tensor(splits)
        tensor = tensor[: tf.reduce_sum(splits)]
    return ring.alltoall(tensor, splits, name=name, process_set=process_set)


def check_root(root_rank: int, process_set: ProcessSet) -> None:
    """Raises what Horovod raises for a root that is no member."""
    if root_rank not in process_set.ranks:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "`root_rank` must be one of the process set's ranks. "
            f"Received: root_rank={root_rank}, process_set={process_set}",
        )


def _check_slices(
    op: ReduceOp, prescale_factor: float, postscale_factor: float
) -> None:
    if op not in (Sum, Average):
        raise AbsentError(
            "[RK430] "
            "tf.IndexedSlices can be summed and averaged; for others, make them "
            f"dense with tf.convert_to_tensor() first. Received: op={op}"
        )
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise AbsentError(
            "[RK430] "
            "tf.IndexedSlices take no factors; scale their values instead. Received: "
            f"prescale_factor={prescale_factor}, postscale_factor={postscale_factor}"
        )


def _allreduce_slices(
    slices: tf.IndexedSlices, op: ReduceOp, name: str | None, process_set: ProcessSet
) -> tf.IndexedSlices:
    name = name or name_after([slices], "allreduce")
    # The same on all ranks, also where one has no examples.
    values = allgather_all(
        with_gradient_times(
            1 / process_set.size(), tf.convert_to_tensor(slices.values)
        ),
        name=name_of_member(name, "values"),
        process_set=process_set,
    )
    where = name_of_member(name, "indices")
    if op == Average:
        indices, count = gather_indices(slices.indices, where, process_set)
        values = values / tf.cast(count, values.dtype)
    else:
        indices = allgather_all(slices.indices, name=where, process_set=process_set)
    return tf.IndexedSlices(values, indices, slices.dense_shape)
