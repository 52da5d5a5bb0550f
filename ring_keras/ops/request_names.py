"""Names of collectives where nothing orders them.

Eagerly, and in a `tf.function`, a rank's collectives run in the order of its
calls, so the n-th use of a name meets the n-th of the other ranks. A graph that
`tf.compat.v1.Session` runs has no such order: TensorFlow starts what is ready,
which differs from rank to rank. There each operation must have a name of its own.
"""

import re
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from ring_keras.job.job import PerJob, job_or_none
from ring_keras.keras_internals.graphs import (
    has_no_variables,
    is_branch,
    is_for_xla,
)

__all__ = [
    "has_combined",
    "in_unordered_graph",
    "name_after",
    "to_request_name",
    "unique_in_graph",
]

_COPYING = ("barrier", "broadcast", "grouped_broadcast")

has_combined: PerJob[bool] = PerJob(bool)
"""Whether an op that combines, or collects, tensors of the ranks was asked for."""

# To TensorFlow an op's name for the other ranks is one of its attributes, and it keeps
# a kernel, 40 kB, for each that an eager op has had. To drop them would begin the
# sequences of its random ops anew, so that is left to the user, who is told.
MOST_NAMES = 4096

# What is used in each graph, for as long as the graph lives.
_names_of_graphs: weakref.WeakKeyDictionary[tf.Graph, set[str]]
_names_of_graphs = weakref.WeakKeyDictionary()


class EagerNames:
    """Those of eager ops; see MOST_NAMES."""

    def __init__(self) -> None:
        self._names: set[str] | None = set()

    def note(self, name: str) -> bool:
        """One is used; whether they are so many that somebody should know, once."""
        if self._names is None or name in self._names:
            return False
        self._names.add(name)
        if len(self._names) < MOST_NAMES:
            return False
        self._names = None
        return True


# Of this process, as TensorFlow's cache is.
_eager_names = EagerNames()


def in_unordered_graph() -> bool:
    """Whether operations made now run in an order that TensorFlow chooses."""
    if tf.executing_eagerly():
        return False
    return _is_unordered(tf.compat.v1.get_default_graph())


def _is_unordered(graph: tf.Graph) -> bool:
    # Set while a tf.function is traced, where stateful operations keep their order.
    return not getattr(graph, "_add_control_dependencies", False)


def to_request_name(name: str | None, function: str, tensors: Sequence[Any]) -> str:
    """The name under which the ranks meet.

    Args:
        name: What the user chose, if anything.
        function: The default where calls are ordered.
        tensors: What the collective gets. Where calls are not ordered, the default
            is made of the names of the first and the last, so that ranks which
            build the same graph, and something of their own besides, meet.
    """
    job = job_or_none()
    if job is not None and function not in _COPYING:
        has_combined.put(job, True)
    if not in_unordered_graph():
        if tf.executing_eagerly():
            _note_eager_name(name or function)
        return name or function
    return unique_in_graph(name or name_after(tensors, function) or function)


def name_after(tensors: Sequence[Any], function: str) -> str | None:
    """See `to_request_name`; None where calls are ordered."""
    if not in_unordered_graph():
        return None
    ends = dict.fromkeys(_name_of(tensors[i]) for i in (0, -1)) if tensors else {}
    return "_".join([function, *ends])


def unique_in_graph(name: str) -> str:
    """`name`, with a number behind it if the graph has used it; as it is elsewhere."""
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    if is_for_xla(graph) and has_no_variables(graph):
        # It has no place among those outside: `branch_order`.
        while is_branch(graph):
            graph = graph.outer_graph
        return _unique(f"{name}/branch", graph)
    if not _is_unordered(graph):
        return name
    # The branches of a tf.cond share the names of its graph. What surrounds the graph
    # of a function's gradients runs in order: each time those are traced, as by one
    # rank alone, they have the same names.
    is_in_order = tf.compat.v1.executing_eagerly_outside_functions()
    while (outer := getattr(graph, "outer_graph", None)) is not None:
        is_function = hasattr(outer, "outer_graph")
        if is_in_order and not (is_function and _is_unordered(outer)):
            break
        graph = outer
    return _unique(name, graph)


def _unique(name: str, graph: Any) -> str:
    used = _names_of_graphs.setdefault(graph, set())
    unique, number = name, 0
    while unique in used:
        number += 1
        unique = f"{name}_{number}"
    used.add(unique)
    return unique


def _name_of(tensor: Any) -> str:
    values = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    return re.sub(r"\W", "_", str(getattr(values, "name", "")) or "value")


def _note_eager_name(name: str) -> None:
    """An eager op is about to have this name for the other ranks."""
    if _eager_names.note(name):
        logging.warning(
            "ring_keras: [RK431] "
            "eager collectives have had %d names, the last of which is "
            "'%s'. TensorFlow keeps 40 kB for each, for ever: use the same name in "
            "each step.",
            MOST_NAMES,
            name,
        )
