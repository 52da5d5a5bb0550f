"""Broadcasts of variables and objects, with Horovod's arguments."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import ring_keras as ring
from ring_keras.horovod._absent import absent
from ring_keras.horovod._collectives import check_root
from ring_keras.job.process_set import ProcessSet, global_process_set

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Broadcasts variables in place, and returns them; in a session's graph values."""
    check_root(root_rank, process_set)
    variables = list(variables)
    operation = ring.broadcast_variables(
        variables, root_rank, name=name, process_set=process_set
    )
    if operation is None:
        return variables
    with tf.control_dependencies([operation]):
        return [variable.read_value() for variable in variables]


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """See `ring_keras.broadcast_variables`, which is in place always."""
    check_root(root_rank, process_set)
    return ring.broadcast_variables(list(variables), root_rank, process_set=process_set)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See `ring_keras.broadcast_object`, which takes plain values alone.

    It needs no session, in a graph neither.
    """
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
    """See `ring_keras.allgather_object`, which takes plain values alone.

    It needs no session, in a graph neither.
    """
    return ring.allgather_object(obj, name=name, process_set=process_set)


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Broadcasts all variables of the graph of a `tf.compat.v1.Session`.

    Returns:
        The operation that does it, to be run once the variables are initialized.

    Raises:
        NotImplementedError: If called eagerly, where there is no such collection.
    """
    if tf.executing_eagerly():
        absent(
            "broadcast_global_variables() outside of a graph",
            "Call broadcast_variables() with those of the model and the optimizer, "
            "or give fit() a BroadcastGlobalVariablesCallback.",
        )
    operation = broadcast_variables(tf.compat.v1.global_variables(), root_rank)
    return operation if operation is not None else tf.no_op()


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcasts all variables when a `MonitoredTrainingSession` begins.

    Args:
        root_rank: The rank that sends, which alone need restore a checkpoint.
        device: Ignored.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._broadcast: tf.Operation | None = None

    def begin(self) -> None:
        """Adds the operation to the graph, while that can be added to."""
        graph = tf.compat.v1.get_default_graph()
        if self._broadcast is None or self._broadcast.graph is not graph:
            self._broadcast = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it; variables are initialized, or restored, by then."""
        session.run(self._broadcast)
