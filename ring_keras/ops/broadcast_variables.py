"""Broadcast of variables, in place."""

import hashlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError, translated
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.ops.broadcast import grouped_broadcast
from ring_keras.ops.common_order import note_places, require_common_order
from ring_keras.ops.request_names import in_unordered_graph
from ring_keras.ops.shards import refuse_shards
from ring_keras.values.encoding import encode
from ring_keras.values.objects import allgather_object

__all__ = ["broadcast_variables"]

# A `tf.Variable` or a `keras.Variable`.
_Variable = Any


@translated()
def broadcast_variables(
    variables: Sequence[_Variable],
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tf.Operation | None:
    """Gives variables the values they have on one rank; one message per dtype.

    Some layers, such as `Normalization`, compute with constants that they derive from
    their variables. Called eagerly, this function also updates these constants. Call it
    before a function that uses such a layer is traced.

    Examples:
        >>> weight = tf.Variable(float(ring.rank()))
        >>> ring.broadcast_variables([weight], root_rank=1)
        >>> weight.numpy()
        np.float32(1.0)

    Args:
        variables: `tf.Variable`s or `keras.Variable`s. They are matched by
            position; number, shapes and dtypes must agree on every rank. Names
            may differ, but the same names in another order are refused.
        root_rank: The rank of the whole job that sends.
        name: See `allreduce`. Defaults to "broadcast_variables".
        process_set: Ranks taking part. Defaults to all.

    Returns:
        None; or, in the graph of a `tf.compat.v1.Session`, the operation that does
        it when it is run.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        ValueError: If one is of an optimizer with `shard_state=True`.
        RankMismatchError: If the ranks' variables differ, or are in different
            orders. Called eagerly, it names the first variable that differs, and no
            variable has been changed.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent too long.
    """
    name = name or "broadcast_variables"
    refuse_shards(variables, "broadcast_variables")
    process_set = process_set or global_process_set
    if tf.executing_eagerly():
        _agree(variables, name, process_set)
    note_places(variables, process_set)
    by_dtype: dict[tf.DType, list[_Variable]] = {}
    for variable in variables:
        dtype = tf.as_dtype(variable.dtype).base_dtype
        by_dtype.setdefault(dtype, []).append(variable)
    assignments: list[Any] = []
    for dtype, group in by_dtype.items():
        values = grouped_broadcast(
            group, root_rank, name=f"{name}/{dtype.name}", process_set=process_set
        )
        for variable, value in zip(group, values, strict=True):
            assignments.append(variable.assign(value))
    if tf.executing_eagerly():
        internals.finalize_layers(variables)
    return tf.group(*assignments) if in_unordered_graph() else None


def _agree(variables: Sequence[_Variable], name: str, process_set: ProcessSet) -> None:
    """Raises the same error on every rank if the variables differ."""
    described = [
        [f"{tf.as_dtype(variable.dtype).name} {list(variable.shape)}", _path(variable)]
        for variable in variables
    ]
    digests = [
        hashlib.sha256(encode(list(column))).hexdigest()
        for column in zip(*described, strict=True)
    ]
    of_all = allgather_object(digests, name=f"{name}/digest", process_set=process_set)
    if all(theirs == digests for theirs in of_all):
        return
    if all(theirs[:1] == digests[:1] for theirs in of_all):
        require_common_order([path for _, path in described], name, process_set)
        return
    all_described = allgather_object(
        described, name=f"{name}/described", process_set=process_set
    )
    raise RankMismatchError(_first_difference(name, process_set.ranks, all_described))


def _first_difference(
    name: str, ranks: list[int], described: list[list[list[str]]]
) -> str:
    position = next(
        position
        for position in range(max(len(one) for one in described))
        if len({_what(one, position) for one in described}) > 1
    )
    other = next(
        index
        for index, one in enumerate(described)
        if _what(one, position) != _what(described[0], position)
    )
    return (
        "[RK316] "
        f"broadcast_variables '{name}': variable {position} differs across ranks: "
        f"rank {ranks[0]} has {_text(described[0], position)}, "
        f"rank {ranks[other]} has {_text(described[other], position)}. "
        "Build the same model, and the same optimizer, on every rank."
    )


def _what(described: list[list[str]], position: int) -> str | None:
    return described[position][0] if position < len(described) else None


def _text(described: list[list[str]], position: int) -> str:
    if position >= len(described):
        return f"no such variable, only {len(described)}"
    what, path = described[position]
    return f"'{path}' ({what})"


def _path(variable: _Variable) -> str:
    return str(getattr(variable, "path", None) or variable.name)
