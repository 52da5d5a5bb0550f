"""What TensorFlow traces a graph for, and where it runs it."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ring_keras.keras_internals.names import TRACED_IN_TRAIN_FUNCTION

__all__ = [
    "has_no_variables",
    "is_branch",
    "is_for_xla",
    "new_scalar",
    "runs_on_chosen_device",
    "trace_train_function",
]


def is_branch(graph: Any) -> bool:
    """Whether it is a side of a condition, or a loop's body or condition."""
    # Here, so that init() can say so where it is gone.
    from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

    return isinstance(graph, ControlFlowFuncGraph)


def has_no_variables(graph: Any) -> bool:
    """Whether it is the gradient of a branch, in which no other variables can be used.

    Or a loop's condition, which XLA lets write none, or a branch inside of one.
    """
    from tensorflow.python.ops.cond_v2 import _CondGradFuncGraph
    from tensorflow.python.ops.control_flow_v2_func_graphs import WhileCondFuncGraph
    from tensorflow.python.ops.while_v2 import _WhileBodyGradFuncGraph

    kinds = (_CondGradFuncGraph, WhileCondFuncGraph, _WhileBodyGradFuncGraph)
    while is_branch(graph):
        if isinstance(graph, kinds):
            return True
        graph = graph.outer_graph
    return False


def is_for_xla(graph: Any) -> bool:
    """Whether XLA compiles it, or what it is a part of."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def new_scalar(name: str, graph: Any) -> tf.Variable:
    """A variable of float32 for a function that is being traced, made outside of it.

    It is where the variables are that `graph` has used, as XLA wants it.
    `tf.Variable` makes none where a function is traced again.
    """
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    # No scope that is open inside of the function is meant.
    with tf.device(None), tf.init_scope(), tf.device(_device_of_variables(graph)):
        return ResourceVariable(0.0, trainable=False, name=name)


def _device_of_variables(graph: Any) -> str | None:
    """None where it has used none: where TensorFlow puts them by itself."""
    for handle in graph.external_captures:
        if handle.dtype == tf.resource:
            while not isinstance(handle, tf.__internal__.EagerTensor):
                outer = handle.graph
                inside = [captured is handle for captured in outer.internal_captures]
                if not any(inside):
                    break  # An argument, such as an iterator.
                handle = outer.external_captures[inside.index(True)]
            else:
                return str(handle.device)
    return None


def runs_on_chosen_device() -> bool:
    """Whether functions are called in a scope of `tf.device`, which a thread has."""
    from tensorflow.python.eager import context

    return bool(context.context().device_name)


def trace_train_function(function: Callable[[Any], Any], iterator: Any) -> bool:
    """Has TensorFlow trace, and not run, what a call of a train function would.

    Args:
        function: What Keras made.
        iterator: Its argument.

    Returns:
        False if nothing of it is a `tf.function` of such an iterator: then nothing has
        been done.
    """
    traced: Any = function
    if inspect.isfunction(function) and function.__closure__ is not None:
        cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
        cell = dict(cells).get(TRACED_IN_TRAIN_FUNCTION)
        traced = function if cell is None else cell.cell_contents
    if not hasattr(traced, "get_concrete_function"):
        return False
    if not isinstance(iterator, tf.data.Iterator):
        return False
    traced.get_concrete_function(iterator)
    return True
