"""Variables of which each rank has updated some pieces: all ranks take all of them."""

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from ring_keras import _libraries
from ring_keras import keras_internals as internals
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet
from ring_keras.job.topology import rank
from ring_keras.keras_internals.graphs import is_for_xla
from ring_keras.ops.arguments import to_root
from ring_keras.ops.broadcast import grouped_broadcast
from ring_keras.ops.request_names import to_request_name
from ring_keras.ops.shards import Piece, Shard
from ring_keras.ops.step import one_step
from ring_keras.values.arguments import to_communicator

__all__ = ["share_variables"]

# Of a graph: the last of these operations.
_EARLIER: Final = "_ring_keras_shared_before"


@translated()
def share_variables(
    variables: Sequence[tf.Variable],
    shards: Sequence[Shard],
    apart: Mapping[Hashable, tf.Variable],
    *,
    name: str,
    process_set: ProcessSet,
    in_place: bool = True,
) -> None:
    """Has each rank take variables from the ranks that have updated them.

    In host memory the collective has the variables' own memory: large pieces go from
    where their rank has them into the others' variables.

    Args:
        variables: Of one type; number, shapes and order agree on every rank.
        shards: Which ranks have updated which pieces of each.
        apart: By `variable_key`, of what this rank has updated apart from the whole.
        name: Pairs this call with the other ranks' calls.
        process_set: Ranks taking part.
        in_place: Whether that may be so. XLA does not compile a function that was
            traced for another. Ranks may differ in this.

    Raises:
        RankMismatchError: If ranks disagree on shape or dtype.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent too long.
    """
    keys = [internals.variable_key(variable) for variable in variables]
    found = [apart.get(key) for key in keys]
    in_place = in_place and all("CPU" in variable.device for variable in variables)
    if not tf.executing_eagerly() and is_for_xla(tf.compat.v1.get_default_graph()):
        in_place = False
    if not in_place:
        with one_step(is_of_training=False):
            _as_tensors(variables, shards, found, name, process_set)
        return
    own = [one for one in found if one is not None]
    numbers = {key: n for n, key in enumerate(key for key in keys if key in apart)}
    pieces = [
        (key, piece)
        for key, shard in zip(keys, shards, strict=True)
        for piece in shard.pieces
    ]
    with _after_earlier() as note:
        note(
            _libraries.ops().ring_keras_share_variables(
                variables=[variable.handle for variable in variables],
                pieces=[one.handle for one in own],
                T=variables[0].dtype.base_dtype,
                counts=[len(shard.pieces) for shard in shards],
                ends=[piece.end for _, piece in pieces],
                roots=[to_root(piece.owner, process_set) for _, piece in pieces],
                apart=[
                    numbers.get(key, -1) if piece.owner == rank() else -1
                    for key, piece in pieces
                ],
                request_name=to_request_name(name, "broadcast", variables),
                communicator_id=to_communicator(process_set),
            )
        )


@contextlib.contextmanager
def _after_earlier() -> Iterator[Callable[[Any], None]]:
    """What is traced inside comes after what was before in this graph.

    TensorFlow orders collectives by the order in which they are traced, but those that
    have variables as inputs by their variables alone: two optimizers would share theirs
    in another order on each rank.

    Yields:
        Is to get the operation.
    """
    if tf.executing_eagerly():
        yield lambda _: None
        return
    graph = tf.compat.v1.get_default_graph()
    earlier = getattr(graph, _EARLIER, None)
    with tf.control_dependencies([] if earlier is None else [earlier]):
        yield functools.partial(setattr, graph, _EARLIER)


def _as_tensors(
    variables: Sequence[tf.Variable],
    shards: Sequence[Shard],
    apart: Sequence[tf.Variable | None],
    name: str,
    process_set: ProcessSet,
) -> None:
    """Where there is no such op: XLA and GPUs; or where it is not wanted."""
    pieces = [
        (variable, shard, piece, one)
        for variable, shard, one in zip(variables, shards, apart, strict=True)
        for piece in shard.pieces
    ]
    values = iter(
        grouped_broadcast(
            # As the op has them.
            [tf.reshape(_sent(*piece), [-1]) for piece in pieces],
            [piece.owner for _, _, piece, _ in pieces],
            name=name,
            process_set=process_set,
        )
    )
    for variable, shard, one in zip(variables, shards, apart, strict=True):
        its = [next(values) for _ in shard.pieces]
        if one is not None or any(piece.owner != rank() for piece in shard.pieces):
            # In one copy: TensorFlow takes far longer to assign some rows.
            whole = its[0] if len(its) == 1 else tf.concat(its, 0)
            variable.assign(tf.reshape(whole, shard.shape))


def _sent(
    variable: tf.Variable, shard: Shard, piece: Piece, apart: tf.Variable | None
) -> Any:
    """What this rank has of a piece, or something of its shape."""
    if piece.owner == rank() and apart is not None:
        return apart
    if not shard.is_cut:
        return variable
    shape = shard.shape_of(piece)
    if piece.owner != rank():
        return tf.raw_ops.Empty(shape=shape, dtype=variable.dtype.base_dtype)
    return tf.reshape(tf.reshape(variable, [-1])[piece.begin : piece.end], shape)
