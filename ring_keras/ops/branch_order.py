"""Orders collectives inside of a condition or loop, under XLA, against those outside.

Each collective of a computation takes a token from the one before it. A branch is a
computation of its own: the token enters and leaves it as the value of a variable, which
TensorFlow hands in and takes out. Without that, XLA would order collectives in a
branch by their data alone: a rank whose batch is empty, or of another size, might begin
them in another order than the other ranks.

A `tf.function` that a branch calls has no part in this, nor has the gradient of a
branch, nor a loop's condition: their collectives are ordered by their data.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.keras_internals.graphs import (
    has_no_variables,
    is_branch,
    is_for_xla,
    new_scalar,
)

__all__ = ["begin_collectives", "end_collectives", "in_branch_order"]

# Of a graph: that it has taken the token in; that the last one is in the variable; and,
# of the outermost, the variable.
_HAS_TAKEN = "_ring_keras_has_taken_order"
_IS_OUT = "_ring_keras_order_is_out"
_VARIABLE = "_ring_keras_order"


@contextlib.contextmanager
def in_branch_order() -> Iterator[None]:
    """Keeps the place of the collectives that are traced inside."""
    begin_collectives()
    yield
    end_collectives()


def begin_collectives() -> None:
    """Has those that are traced now come after all that were traced before."""
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    if not _has_order(graph):
        return
    if is_branch(graph) and not getattr(graph, _HAS_TAKEN, False):
        with graph.outer_graph.as_default():
            _put_out()
        setattr(graph, _HAS_TAKEN, True)
        setattr(graph, _IS_OUT, True)
    if getattr(graph, _IS_OUT, False):
        _libraries.ops().ring_keras_take_order(order=_variable(graph).read_value())
        setattr(graph, _IS_OUT, False)


def end_collectives() -> None:
    """Has what is traced after this branch come after those that it has had."""
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    if _has_order(graph) and is_branch(graph):
        _variable(graph).assign(_libraries.ops().ring_keras_give_order())


def _has_order(graph: Any) -> bool:
    return is_for_xla(graph) and not has_no_variables(graph)


def _put_out() -> None:
    """Before a branch of the default graph."""
    graph = tf.compat.v1.get_default_graph()
    if getattr(graph, _IS_OUT, False):
        return  # Of a branch before this one.
    if is_branch(graph):
        begin_collectives()
    _variable(graph).assign(_libraries.ops().ring_keras_give_order())
    setattr(graph, _IS_OUT, True)


def _variable(graph: Any) -> tf.Variable:
    """One for each function that is compiled: two may run at once."""
    while is_branch(graph):
        graph = graph.outer_graph
    variable = getattr(graph, _VARIABLE, None)
    if variable is None:
        variable = new_scalar("ring_keras_order", graph)
        setattr(graph, _VARIABLE, variable)
    return variable
