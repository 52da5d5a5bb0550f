"""How what ranks average at a meeting travels in fewer bits than it has.

What the bits cannot say stays with the rank that sends, and is added to what it has at
the next meeting (error feedback). Nothing is lost by that: at any time the ranks'
residuals add up to what the averages so far lack.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ring_keras.job.process_set import ProcessSet
from ring_keras.keras_internals.graphs import is_for_xla
from ring_keras.ops.allgather import allgather_all
from ring_keras.ops.alltoall import alltoall
from ring_keras.optimizers.graph_wires import GraphInt8, GraphTopK
from ring_keras.optimizers.native_wires import NativeInt8, NativeTopK
from ring_keras.optimizers.thin_wire import (
    BLOCK,
    KEPT_NBYTES,
    SCALE_NBYTES,
    Shapes,
    ThinWire,
    largest_count,
    rows_of_rank,
)

__all__ = ["THIN_WIRES", "WIRES", "average_thinly", "sent_nbytes", "thin_wire"]

_NATIVE: dict[str, ThinWire] = {"int8": NativeInt8(), "top-k": NativeTopK()}
_GRAPH: dict[str, ThinWire] = {"int8": GraphInt8(), "top-k": GraphTopK()}

THIN_WIRES = tuple(_NATIVE)
"""Those that leave residuals."""

WIRES = ("float32", "bfloat16", *THIN_WIRES)


def thin_wire(name: str) -> ThinWire:
    """One of `THIN_WIRES`: by ops of ours or TensorFlow's, in what is traced now.

    XLA and GPUs, whose memory is fast, have TensorFlow's. What one of the two sends,
    the other may receive.
    """
    for_xla = not tf.executing_eagerly() and is_for_xla(
        tf.compat.v1.get_default_graph()
    )
    native = not for_xla and not tf.config.list_logical_devices("GPU")
    return (_NATIVE if native else _GRAPH)[name]


def average_thinly(
    thin: ThinWire,
    values: Sequence[tf.Tensor],
    residuals: Sequence[tf.Tensor],
    share: tf.Tensor,
    process_set: ProcessSet,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Averages the ranks' values; collective, in a step that is open.

    Args:
        thin: See `thin_wire`.
        values: Of static shapes, alike on all ranks.
        residuals: What the call before has returned; like `values`, in float32.
        share: This rank's part of the average; all ranks' add up to 1, or are 0.
        process_set: The ranks that take part.

    Returns:
        The averages, bitwise equal on every rank, and the residuals.
    """
    like = [value.shape for value in values]
    message, left = thin.begin(values, residuals, share, process_set)
    received = _exchanged(thin, 0, message, like, process_set)
    for number in range(1, len(thin.exchanges)):
        message, left = thin.go_on(received, left, process_set)
        received = _exchanged(thin, number, message, like, process_set)
    sums = thin.end(received, like, process_set)
    return [tf.cast(s, v.dtype) for s, v in zip(sums, values, strict=True)], left


def _exchanged(
    thin: ThinWire,
    number: int,
    message: tf.Tensor,
    like: Shapes,
    process_set: ProcessSet,
) -> tf.Tensor:
    kind = thin.exchanges[number]
    exchange = {"alltoall": alltoall, "allgather": allgather_all}[kind]
    received = exchange(message, name=f"far_apart/{kind}", process_set=process_set)
    shape, _ = thin.received(number, like, process_set.size())
    return tf.ensure_shape(received, shape)


def sent_nbytes(wire: str, values: Sequence[Any], size: int) -> float:
    """The bytes that each of some senders sends to the others in one average.

    Of the algorithms for large tensors, without headers: an allreduce sends
    2 (size - 1) / size of what it reduces.

    Args:
        wire: One of `WIRES`.
        values: What is averaged, with dtypes and static shapes.
        size: How many send.
    """
    counts = [math.prod(value.shape) for value in values]
    if wire == "int8":
        rows = rows_of_rank([tf.TensorShape(one.shape) for one in values], size)
        return 2 * (size - 1) * rows * (BLOCK + SCALE_NBYTES)
    if wire == "top-k":
        return (size - 1) * KEPT_NBYTES * sum(map(largest_count, counts))
    dtypes = [tf.as_dtype(value.dtype) for value in values]
    if wire == "bfloat16":
        dtypes = [tf.bfloat16 if one == tf.float32 else one for one in dtypes]
    nbytes = sum(c * one.size for c, one in zip(counts, dtypes, strict=True))
    return 2 * (size - 1) / size * float(nbytes)
