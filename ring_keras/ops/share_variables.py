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
    found = [apart.get(internals.variable_key(variable)) for variable in variables]
    in_place = in_place and all("CPU" in variable.device for variable in variables)
    if not tf.executing_eagerly() and is_for_xla(tf.compat.v1.get_default_graph()):
        in_place = False
    share = _in_place if in_place else _as_tensors
    pieces = [piece for shard in shards for piece in shard.pieces]
    share(
        variables,
        shards,
        found,
        ends=[piece.end for piece in pieces],
        roots=[to_root(piece.owner, process_set) for piece in pieces],
        request_name=to_request_name(name, "broadcast", variables),
        communicator_id=to_communicator(process_set),
    )


def _in_place(
    variables: Sequence[tf.Variable],
    shards: Sequence[Shard],
    apart: Sequence[tf.Variable | None],
    **attributes: Any,
) -> None:
    own: list[tf.Variable] = []
    wholes, numbers = [], []
    for n, (shard, one) in enumerate(zip(shards, apart, strict=True)):
        for piece in shard.pieces:
            is_apart = one is not None and piece.owner == rank()
            wholes.append(n)
            numbers.append(len(own) if is_apart else -1)
            if is_apart:
                own.append(one)
    with _after_earlier() as note:
        note(
            _libraries.ops().ring_keras_share_variables(
                variables=[variable.handle for variable in variables],
                pieces=[one.handle for one in own],
                T=variables[0].dtype.base_dtype,
                wholes=wholes,
                apart=numbers,
                **attributes,
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
    **attributes: Any,
) -> None:
    """Where a variable's memory is not ours: XLA, GPUs; or where it is not wanted."""
    own: list[tf.Tensor] = []
    taking: list[tuple[tf.Variable, Shard]] = []
    wholes, numbers = [], []
    for variable, shard, one in zip(variables, shards, apart, strict=True):
        if takes := one is not None or not _has_all(shard):
            taking.append((variable, shard))
        for piece in shard.pieces:
            wholes.append(len(taking) - 1 if takes else -1)
            numbers.append(len(own) if piece.owner == rank() else -1)
            if piece.owner == rank():
                own.append(_piece(variable, piece) if one is None else one)
    # TensorFlow takes the type from these.
    own = own or [tf.zeros([0], variables[0].dtype.base_dtype)]
    with one_step(is_of_training=False):
        tensors = _libraries.ops().ring_keras_broadcast_pieces(
            own=own,
            N=len(taking),
            shapes=[shard.shape for _, shard in taking],
            wholes=wholes,
            apart=numbers,
            **attributes,
        )
    for n, (variable, _) in enumerate(taking):
        variable.assign(tensors[n])


def _has_all(shard: Shard) -> bool:
    return all(piece.owner == rank() for piece in shard.pieces)


def _piece(variable: tf.Variable, piece: Piece) -> tf.Tensor:
    """In a row, as it travels."""
    return tf.reshape(variable, [-1])[piece.begin : piece.end]
