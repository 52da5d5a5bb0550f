"""Gradients of the collectives.

Each is a collective itself, so every rank must take the gradient, in the same
order. Its name is that of the forward collective with "/gradient" appended.

Each rank differentiates its own loss. What goes from one rank's loss to another's
tensors counts as the sender's examples do: `training_step.py`.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ring_keras import _libraries, _native
from ring_keras.errors import translated
from ring_keras.ops.arguments import to_factor
from ring_keras.ops.request_names import unique_in_graph
from ring_keras.ops.step import step_role
from ring_keras.ops.training_step import (
    divided_by_own_amount,
    dtype_on_its_way,
    in_training_step,
    multiplied_by_own_amount,
    require_examples,
)
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
    tensor, prescale, postscale = operation.inputs
    name = _name_of(operation)
    with require_examples("allreduce", name), in_training_step():
        total = _libraries.ops().ring_keras_allreduce(
            tensor=multiplied_by_own_amount(upstream),
            prescale=postscale,
            postscale=_one(),
            reduce_op=_linear_op_of(operation, "allreduce"),
            request_name=name,
            communicator_id=operation.get_attr("communicator_id"),
            step=step_role(),
        )
    total = divided_by_own_amount(total, tensor.dtype)
    return [total * tf.cast(prescale, total.dtype), None, None]


def _allgather_gradient(operation: _Operation, upstream: tf.Tensor) -> tf.Tensor:
    # A reduce-scatter whose parts are the ranks' own rows: each rank's rows go
    # home, where the ranks' shares are added in one order.
    name = _name_of(operation)
    communicator_id = operation.get_attr("communicator_id")
    tensor = operation.inputs[0]
    rows = tf.shape(tensor, out_type=tf.int64)[:1]
    ranks = _ranks_of(operation)
    size = tf.constant([len(ranks)], tf.int64)
    own = tf.constant(ranks.index(_native.topology()[0]), tf.int64)
    sent = multiplied_by_own_amount(upstream)
    none_of_zeros = tf.equal(rows[0], 0)
    with require_examples("allgather", name, none_of_zeros), in_training_step():
        rows_of_ranks = _libraries.ops().ring_keras_allgather(
            tensor=tf.stack([[own], rows], axis=1),
            request_name=f"{name}/rows",
            communicator_id=communicator_id,
            step=step_role(),
        )
        # Of those that are not in `join()`.
        splits = tf.scatter_nd(rows_of_ranks[:, :1], rows_of_ranks[:, 1], size)
        shares, _ = _libraries.ops().ring_keras_alltoall(
            tensor=sent,
            splits=splits,
            request_name=name,
            communicator_id=communicator_id,
            step=step_role(),
        )
    count = tf.shape(rows_of_ranks)[:1]
    by_rank = tf.reshape(
        shares, tf.concat([count, tf.shape(tensor)], axis=0), name="by_rank"
    )
    # TensorFlow adds 16-bit floats in 16 bits.
    wide = tf.float64 if tensor.dtype == tf.float64 else tf.float32
    total = tf.reduce_sum(tf.cast(by_rank, wide), axis=0)
    return divided_by_own_amount(total, tensor.dtype)


def _broadcast_gradient(
    operation: _Operation, *upstreams: tf.Tensor
) -> list[tf.Tensor]:
    ranks = _ranks_of(operation)
    is_root = [
        ranks[root] == _native.topology()[0] for root in operation.get_attr("roots")
    ]
    name = _name_of(operation)
    sent = [multiplied_by_own_amount(upstream) for upstream in upstreams]
    with require_examples("broadcast", name, not any(is_root)), in_training_step():
        handle = _libraries.ops().ring_keras_allreduce_start(
            tensors=sent,
            prescale=_one(),
            postscale=_one(),
            weight=[],
            reduce_op=ReduceOp.SUM.value,
            request_name=name,
            communicator_id=operation.get_attr("communicator_id"),
            wait_follows=True,
            step=step_role(),
        )
    sums: list[tf.Tensor] = _libraries.ops().ring_keras_allreduce_wait(
        handle=handle,
        T=sent[0].dtype,
        N=len(sent),
        shapes=[one.shape for one in sent],
        reduce_op=ReduceOp.SUM.value,
        request_name=name,
        communicator_id=operation.get_attr("communicator_id"),
    )
    # In a session's graph nothing runs that is not fetched, and the root waits for it.
    with tf.control_dependencies(sums):
        return [
            divided_by_own_amount(total, upstream.dtype)
            if own
            else tf.zeros_like(upstream)
            for total, own, upstream in zip(sums, is_root, upstreams, strict=True)
        ]


def _reduce_scatter_gradient(operation: _Operation, upstream: tf.Tensor) -> list[Any]:
    tensor, prescale, postscale = operation.inputs
    name = _name_of(operation)
    factor = prescale * postscale
    if _linear_op_of(operation, "reducescatter") == ReduceOp.AVERAGE:
        factor = factor / len(_ranks_of(operation))
    with require_examples("reducescatter", name), in_training_step():
        gathered = _libraries.ops().ring_keras_allgather(
            tensor=multiplied_by_own_amount(upstream),
            request_name=name,
            communicator_id=operation.get_attr("communicator_id"),
            step=step_role(),
        )
    gathered = divided_by_own_amount(gathered, tensor.dtype)
    gathered = _of_all_ranks(gathered, tensor, "reducescatter", name)
    return [gathered * tf.cast(factor, gathered.dtype), None, None]


def _alltoall_gradient(
    operation: _Operation, upstream: tf.Tensor, _: tf.Tensor
) -> list[Any]:
    name = _name_of(operation)
    with require_examples("alltoall", name), in_training_step():
        downstream, _ = _libraries.ops().ring_keras_alltoall(
            tensor=multiplied_by_own_amount(upstream),
            splits=operation.outputs[1],
            request_name=name,
            communicator_id=operation.get_attr("communicator_id"),
            step=step_role(),
        )
    tensor = operation.inputs[0]
    downstream = divided_by_own_amount(downstream, tensor.dtype)
    return [_of_all_ranks(downstream, tensor, "alltoall", name), None]


def _of_all_ranks(
    gradient: tf.Tensor, tensor: tf.Tensor, function: str, name: str
) -> tf.Tensor:
    """The same; an error if the gradient of some rows is missing."""
    holds = tf.debugging.Assert(
        tf.equal(tf.shape(gradient)[0], tf.shape(tensor)[0]),
        [
            "RingKerasError: [RK417] "
            f"{function} {name} needs the gradients of all ranks, and one is in "
            "join(). Take the gradient before the first rank joins, or iterate over "
            "ring_keras.data.join(dataset) on every rank."
        ],
    )
    with tf.control_dependencies([] if holds is None else [holds]):
        return tf.identity(gradient)


# The gradient of a wait starts, and that of a start waits: backward, too, the
# collective runs while TensorFlow computes what lies between.


def _allreduce_wait_gradient(operation: _Operation, *upstreams: tf.Tensor) -> tf.Tensor:
    name = _name_of(operation)
    with require_examples("grouped_allreduce", name), in_training_step():
        return _libraries.ops().ring_keras_allreduce_start(
            tensors=[multiplied_by_own_amount(upstream) for upstream in upstreams],
            prescale=_one(),
            postscale=_one(),
            weight=[],
            reduce_op=_linear_op_of(operation, "grouped_allreduce"),
            request_name=name,
            communicator_id=operation.get_attr("communicator_id"),
            step=step_role(),
        )


def _allreduce_start_gradient(
    operation: _Operation, pending: tf.Tensor
) -> list[tf.Tensor | None]:
    count = operation.get_attr("N")
    tensors = operation.inputs[:count]
    prescale, postscale, *weight = operation.inputs[count:]
    sums = _libraries.ops().ring_keras_allreduce_wait(
        handle=pending,
        T=dtype_on_its_way(tensors[0].dtype),
        N=count,
        shapes=[tensor.shape for tensor in tensors],
        reduce_op=_linear_op_of(operation, "grouped_allreduce"),
        request_name=_name_of(operation),
        communicator_id=operation.get_attr("communicator_id"),
    )
    factor = prescale * postscale
    if weight:
        factor *= _share(operation, weight[0])
    totals = [divided_by_own_amount(total, tensors[0].dtype) for total in sums]
    factor = tf.cast(factor, tensors[0].dtype)
    return [total * factor for total in totals] + [None] * (2 + len(weight))


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
