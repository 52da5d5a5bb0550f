"""Gradients of the collectives.

Each is a collective itself, so every rank must take the gradient, in the same
order. Its name is that of the forward collective with "/gradient" appended.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ring_keras import _libraries, _native
from ring_keras.errors import translated
from ring_keras.ops.arguments import to_factor
from ring_keras.ops.request_names import unique_in_graph
from ring_keras.values.reduce_op import ReduceOp

# An operation in a graph, or what stands for one when a tape replays it.
_Operation = Any


def _text_attribute(operation: _Operation, attribute: str) -> str:
    value: bytes | str = operation.get_attr(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _name_of(operation: _Operation) -> str:
    """Name of the gradient's own collective, of a start where it has two halves."""
    return unique_in_graph(f"{_text_attribute(operation, 'request_name')}/gradient")


def _linear_op_of(operation: _Operation, function: str) -> str:
    """The reduce op, if its gradient is the same reduction."""
    reduce_op = _text_attribute(operation, "reduce_op")
    if reduce_op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        name = _text_attribute(operation, "request_name")
        raise NotImplementedError(
            "[RK412] "
            f"{function} '{name}': op='{reduce_op}' has no gradient; "
            "only 'sum' and 'average' do. Wrap the input in tf.stop_gradient() if "
            "none is wanted."
        )
    return reduce_op


def _one() -> tf.Tensor:
    return to_factor(1.0)


def _ranks_of(operation: _Operation) -> list[int]:
    return _native.communicator_ranks(operation.get_attr("communicator_id"))


def _allreduce_gradient(operation: _Operation, upstream: tf.Tensor) -> list[Any]:
    # The ranks agree on the postscale only, so the prescale stays at home.
    _, prescale, postscale = operation.inputs
    total = _libraries.ops().ring_keras_allreduce(
        tensor=upstream,
        prescale=postscale,
        postscale=_one(),
        reduce_op=_linear_op_of(operation, "allreduce"),
        request_name=_name_of(operation),
        communicator_id=operation.get_attr("communicator_id"),
    )
    return [total * tf.cast(prescale, total.dtype), None, None]


def _allgather_gradient(operation: _Operation, upstream: tf.Tensor) -> tf.Tensor:
    # A reduce-scatter whose parts are the ranks' own rows: each rank's rows go
    # home, where the ranks' shares are added in one order.
    name = _name_of(operation)
    communicator_id = operation.get_attr("communicator_id")
    tensor = operation.inputs[0]
    rows = tf.shape(tensor, out_type=tf.int64)[:1]
    rows_of_ranks = _libraries.ops().ring_keras_allgather(
        tensor=rows, request_name=f"{name}/rows", communicator_id=communicator_id
    )
    shares, _ = _libraries.ops().ring_keras_alltoall(
        tensor=upstream,
        splits=rows_of_ranks,
        request_name=name,
        communicator_id=communicator_id,
    )
    size = len(_ranks_of(operation))
    by_rank = tf.reshape(
        shares, tf.concat([[size], tf.shape(tensor)], axis=0), name="by_rank"
    )
    # TensorFlow adds 16-bit floats in 16 bits.
    wide = tf.float64 if upstream.dtype == tf.float64 else tf.float32
    return tf.cast(tf.reduce_sum(tf.cast(by_rank, wide), axis=0), upstream.dtype)


def _broadcast_gradient(
    operation: _Operation, *upstreams: tf.Tensor
) -> list[tf.Tensor]:
    ranks = _ranks_of(operation)
    is_root = [
        ranks[root] == _native.topology()[0] for root in operation.get_attr("roots")
    ]
    name = _name_of(operation)
    handle = _libraries.ops().ring_keras_allreduce_start(
        tensors=list(upstreams),
        prescale=_one(),
        postscale=_one(),
        weight=[],
        reduce_op=ReduceOp.SUM.value,
        request_name=name,
        communicator_id=operation.get_attr("communicator_id"),
        wait_follows=True,
    )
    sums: list[tf.Tensor] = _libraries.ops().ring_keras_allreduce_wait(
        handle=handle,
        T=upstreams[0].dtype,
        N=len(upstreams),
        shapes=[upstream.shape for upstream in upstreams],
        reduce_op=ReduceOp.SUM.value,
        request_name=name,
        communicator_id=operation.get_attr("communicator_id"),
    )
    # In a session's graph nothing runs that is not fetched, and the root waits for it.
    with tf.control_dependencies(sums):
        return [
            total if own else tf.zeros_like(upstream)
            for total, own, upstream in zip(sums, is_root, upstreams, strict=True)
        ]


def _reduce_scatter_gradient(operation: _Operation, upstream: tf.Tensor) -> list[Any]:
    _, prescale, postscale = operation.inputs
    factor = prescale * postscale
    if _linear_op_of(operation, "reducescatter") == ReduceOp.AVERAGE:
        factor = factor / len(_ranks_of(operation))
    gathered = _libraries.ops().ring_keras_allgather(
        tensor=upstream,
        request_name=_name_of(operation),
        communicator_id=operation.get_attr("communicator_id"),
    )
    return [gathered * tf.cast(factor, gathered.dtype), None, None]


def _alltoall_gradient(
    operation: _Operation, upstream: tf.Tensor, _: tf.Tensor
) -> list[Any]:
    downstream, _ = _libraries.ops().ring_keras_alltoall(
        tensor=upstream,
        splits=operation.outputs[1],
        request_name=_name_of(operation),
        communicator_id=operation.get_attr("communicator_id"),
    )
    return [downstream, None]


# The gradient of a wait starts, and that of a start waits: backward, too, the
# collective runs while TensorFlow computes what lies between.


def _allreduce_wait_gradient(operation: _Operation, *upstreams: tf.Tensor) -> tf.Tensor:
    return _libraries.ops().ring_keras_allreduce_start(
        tensors=list(upstreams),
        prescale=_one(),
        postscale=_one(),
        weight=[],
        reduce_op=_linear_op_of(operation, "grouped_allreduce"),
        request_name=_name_of(operation),
        communicator_id=operation.get_attr("communicator_id"),
    )


def _allreduce_start_gradient(
    operation: _Operation, pending: tf.Tensor
) -> list[tf.Tensor | None]:
    count = operation.get_attr("N")
    tensors = operation.inputs[:count]
    prescale, postscale, *weight = operation.inputs[count:]
    sums = _libraries.ops().ring_keras_allreduce_wait(
        handle=pending,
        T=tensors[0].dtype,
        N=count,
        shapes=[tensor.shape for tensor in tensors],
        reduce_op=_linear_op_of(operation, "grouped_allreduce"),
        request_name=_name_of(operation),
        communicator_id=operation.get_attr("communicator_id"),
    )
    factor = prescale * postscale
    if weight:
        factor *= _share(operation, weight[0])
    factor = tf.cast(factor, tensors[0].dtype)
    return [total * factor for total in sums] + [None] * (2 + len(weight))


def _share(operation: _Operation, weight: tf.Tensor) -> tf.Tensor:
    """This rank's part of all weights, times the number of ranks."""
    communicator_id = operation.get_attr("communicator_id")
    with tf.device("CPU:0"):  # Where the weight is.
        total = _libraries.ops().ring_keras_allreduce(
            tensor=weight,
            prescale=_one(),
            postscale=_one(),
            reduce_op=ReduceOp.SUM.value,
            request_name=f"{_name_of(operation)}/weight",
            communicator_id=communicator_id,
        )
        return tf.math.divide_no_nan(weight * len(_ranks_of(operation)), total)


def _check_gradient(_: _Operation, *upstream: tf.Tensor) -> list[Any]:
    return [None, None, *upstream]


_GRADIENTS: dict[str, Callable[..., Any]] = {
    "RingKerasAllreduce": _allreduce_gradient,
    "RingKerasAllgather": _allgather_gradient,
    "RingKerasBroadcast": _broadcast_gradient,
    "RingKerasReduceScatter": _reduce_scatter_gradient,
    "RingKerasAlltoall": _alltoall_gradient,
    "RingKerasAllreduceWait": _allreduce_wait_gradient,
    "RingKerasAllreduceStart": _allreduce_start_gradient,
    "RingKerasCheckReductions": _check_gradient,
}
for _op, _gradient in _GRADIENTS.items():
    tf.RegisterGradient(_op)(translated()(_gradient))
