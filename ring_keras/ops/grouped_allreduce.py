"""Allreduce of many tensors at once, and its two halves: start and wait.

Started collectives run while TensorFlow computes on; waiting late is what
overlaps communication with the rest of a step.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.ops.adasum import adasum, is_adasum
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.arguments import (
    Factor,
    TensorLike,
    to_factor,
    to_tensor,
    to_wire_dtype,
)
from ring_keras.ops.request_names import in_unordered_graph, to_request_name
from ring_keras.ops.step import step_plan, step_role
from ring_keras.ops.training_step import in_training_step
from ring_keras.values.arguments import to_communicator, to_reduce_op
from ring_keras.values.compression import Compression
from ring_keras.values.reduce_op import ReduceOp

__all__ = [
    "PendingAllreduce",
    "allreduce_start",
    "allreduce_wait",
    "grouped_allreduce",
]


@dataclasses.dataclass(frozen=True)
class PendingAllreduce:
    """An allreduce on its way; `allreduce_wait` takes it."""

    handle: tf.Tensor
    dtype: tf.DType
    shapes: tuple[tf.TensorShape, ...]
    reduce_op: str
    name: str
    communicator_id: int


@translated()
def allreduce_start(
    tensors: Sequence[TensorLike],
    op: ReduceOp | str = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    prescale_factor: Factor = 1.0,
    postscale_factor: Factor = 1.0,
    weight: Factor | None = None,
    wait_follows: bool = False,
    splits: Sequence[int] = (),
    compression: Compression | str = Compression.none,
    process_set: ProcessSet | None = None,
) -> PendingAllreduce:
    """Starts reducing tensors of one dtype, as one message, and returns at once.

    An error of the collective, such as ranks that disagree, is raised by the
    wait.

    Args:
        tensors: One or more tensors of the same dtype. Their number, shapes and
            order must agree on every rank.
        op: See `allreduce`.
        name: Defaults to "grouped_allreduce".
        prescale_factor: See `allreduce`.
        postscale_factor: See `allreduce`.
        weight: How much this rank counts in an average, 0 or more: the result
            is the sum of the weighted tensors over the sum of all ranks'
            weights, and 0 if all weights are. Either all ranks give one or none
            does; None for all alike.
        wait_follows: Whether the next thing to do is to wait for it. It then
            starts no other thread if the ranks are in step.
        splits: How many elements of the tensors, one behind the other, each rank of the
            process set gets, on CPUs, and not in what XLA compiles. The result is one
            tensor of as many elements. Empty: all ranks get all.
        compression: See `allreduce`; not with `splits`.
        process_set: See `allreduce`.

    Returns:
        What `allreduce_wait` takes. Dropping it is allowed: the collective runs
        to its end all the same, and its memory is released then.
    """
    tensors = [to_tensor(tensor, "allreduce_start") for tensor in tensors]
    dtypes = sorted({tensor.dtype.name for tensor in tensors})
    if len(dtypes) != 1:
        raise ValueError(
            "ring_keras.ops.allreduce_start takes one or more tensors of one dtype. "
            f"Received: {len(tensors)} tensors, dtypes={dtypes}"
        )
    if splits and Compression(compression) is not Compression.none:
        raise ValueError(
            "ring_keras.ops.allreduce_start takes `splits` without compression. "
            f"Received: compression={compression!r}"
        )
    dtype = tensors[0].dtype
    reduce_op = to_reduce_op(op, dtype.name, "allreduce_start")
    name = to_request_name(name, "grouped_allreduce", tensors)
    communicator_id = to_communicator(process_set)
    with in_training_step():
        handle = _libraries.ops().ring_keras_allreduce_start(
            tensors=tensors,
            prescale=to_factor(prescale_factor),
            postscale=to_factor(postscale_factor),
            weight=[] if weight is None else [to_factor(weight)],
            reduce_op=reduce_op,
            request_name=name,
            communicator_id=communicator_id,
            wait_follows=wait_follows,
            wire_dtype=to_wire_dtype(compression, dtype, "allreduce_start"),
            step=step_role(),
            plan=step_plan(),
            splits=list(splits),
        )
    shapes = tuple(tensor.shape for tensor in tensors)
    if splits:
        own = (process_set or global_process_set).rank()
        shapes = (tf.TensorShape([splits[own]]),)
    return PendingAllreduce(handle, dtype, shapes, reduce_op, name, communicator_id)


@translated()
def allreduce_wait(
    pending: PendingAllreduce, *, blocks: bool = False
) -> list[tf.Tensor]:
    """Waits for a started allreduce.

    Args:
        pending: What a start has returned.
        blocks: Whether a thread of TensorFlow's waits, on a CPU, in a `tf.function`, if
            TensorFlow has others. Then what follows takes no thread that has to be
            woken. As many functions at once as there are threads could wait for
            each other.

    Returns:
        The reduced tensors, in the order they were given to the start.
    """
    with tf.device(pending.handle.device):  # The results are there.
        reduced: list[tf.Tensor] = _libraries.ops().ring_keras_allreduce_wait(
            handle=pending.handle,
            T=pending.dtype,
            N=len(pending.shapes),
            shapes=pending.shapes,
            reduce_op=pending.reduce_op,
            request_name=pending.name,
            communicator_id=pending.communicator_id,
            blocks=blocks and _may_block(),
        )
    return reduced


def _may_block() -> bool:
    """Whether TensorFlow has threads besides one that waits for collectives.

    All of these must have been started, as they have in a function; eagerly, the
    caller's thread waits anyhow.
    """
    if tf.executing_eagerly() or in_unordered_graph():
        return False
    asked_for = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    threads = (
        tf.config.threading.get_inter_op_parallelism_threads()
        or (int(asked_for) if asked_for.isdecimal() else 0)
        or len(os.sched_getaffinity(0))
    )
    return threads > 1


@translated()
def grouped_allreduce(
    tensors: Sequence[TensorLike],
    op: ReduceOp | str = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    prescale_factor: Factor = 1.0,
    postscale_factor: Factor = 1.0,
    compression: Compression | str = Compression.none,
    process_set: ProcessSet | None = None,
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Reduces many tensors, those of one dtype as one message.

    Examples:
        >>> sums = [tf.constant(1.0), tf.constant([2.0, 3.0])]
        >>> total, parts = ring.grouped_allreduce(sums, op=ring.Sum)
        >>> total.numpy(), parts.numpy()
        (np.float32(2.0), array([4., 6.], dtype=float32))

    Args:
        tensors: Tensors of any dtypes; `tf.IndexedSlices` are reduced one by
            one. Their number, shapes, dtypes and order must agree on every rank.
        op: See `allreduce`.
        name: Defaults to "grouped_allreduce".
        prescale_factor: See `allreduce`.
        postscale_factor: See `allreduce`.
        compression: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        The reduced tensors, in the order given.
    """
    name = to_request_name(name, "grouped_allreduce", tensors)
    reduced: list[tf.Tensor | tf.IndexedSlices] = list(tensors)
    positions_by_dtype: dict[tf.DType, list[int]] = {}
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, tf.IndexedSlices):
            reduced[position] = to_tensor(tensor, "grouped_allreduce")
            dtype = reduced[position].dtype
            positions_by_dtype.setdefault(dtype, []).append(position)

    started: list[tuple[list[int], PendingAllreduce]] = []
    for number, (dtype, positions) in enumerate(positions_by_dtype.items(), 1):
        group = [reduced[position] for position in positions]
        arguments: dict[str, Any] = {
            "name": f"{name}/{dtype.name}",
            "prescale_factor": prescale_factor,
            "postscale_factor": postscale_factor,
            "compression": compression,
            "process_set": process_set,
        }
        if is_adasum(op):
            for position, tensor in zip(
                positions, adasum(group, **arguments), strict=True
            ):
                reduced[position] = tensor
            continue
        last = number == len(positions_by_dtype)
        pending = allreduce_start(group, op, wait_follows=last, **arguments)
        started.append((positions, pending))
    for position, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            reduced[position] = allreduce(
                tensor,
                op,
                name=f"{name}/{position}",
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                process_set=process_set,
            )
    for positions, pending in started:
        for position, tensor in zip(positions, allreduce_wait(pending), strict=True):
            reduced[position] = tensor
    return reduced
