"""Collectives that are under way between one step and a later one.

What departs is copied, and works in memory of the engine's. So it needs nothing of
the step that it departs in, and may arrive in another function, compiled by XLA or not.
"""

import weakref
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from ring_keras import _libraries, _native
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.arguments import to_factor, to_wire_dtype
from ring_keras.ops.step import step_plan, step_role
from ring_keras.values.arguments import to_communicator
from ring_keras.values.compression import Compression

__all__ = ["DepartureKind", "arrive", "depart", "forget_departed", "new_slot"]

DepartureKind: TypeAlias = Literal["average", "allgather", "alltoall"]


def new_slot(owner: Any) -> int:
    """A place for one collective at a time; empty once the owner is gone."""
    slot = _native.new_departure_slot()
    weakref.finalize(owner, _native.forget_departed, slot).atexit = False
    return slot


def forget_departed(slot: int) -> None:
    """What is under way there ends by itself, and never arrives."""
    _native.forget_departed(slot)


@translated()
def depart(
    slot: int,
    kind: DepartureKind,
    tensors: Sequence[tf.Tensor],
    *,
    name: str,
    weight: tf.Tensor | None = None,
    compression: Compression = Compression.none,
    process_set: ProcessSet,
) -> None:
    """Starts a collective, and returns at once. What was in the slot is forgotten.

    An error of it is raised by `arrive`.

    Args:
        slot: Where `arrive` finds it.
        kind: Of an allgather, and an alltoall, all ranks have as many rows.
        tensors: One or more of one dtype for an average, else one.
        name: Of a name of which several are under way, the ranks' n-th ones meet, or
            those of the same step.
        weight: Of an average; see `allreduce_start`.
        compression: Of an average.
        process_set: The ranks that take part.
    """
    dtype = tensors[0].dtype
    _libraries.ops().ring_keras_depart(
        tensors=tensors,
        weight=[] if weight is None else [to_factor(weight)],
        kind=kind,
        slot=slot,
        request_name=name,
        communicator_id=to_communicator(process_set),
        wire_dtype=to_wire_dtype(compression, dtype, "depart"),
        step=step_role(),
        plan=step_plan(),
    )


@translated()
def arrive(
    slot: int, shapes: Sequence[tf.TensorShape], dtype: tf.DType, *, name: str
) -> list[tf.Tensor]:
    """Waits for what has departed.

    Args:
        slot: As given to `depart`.
        shapes: Of the results, all known.
        dtype: Theirs.
        name: For messages.

    Returns:
        Averages, in the order of the tensors given; of an allgather or alltoall, one.

    Raises:
        RingKerasError: If nothing is in the slot, or the collective has failed.
    """
    results: list[tf.Tensor] = _libraries.ops().ring_keras_arrive(
        T=dtype, N=len(shapes), shapes=list(shapes), slot=slot, request_name=name
    )
    return results
