"""What TensorFlow traces a graph for."""

from typing import Any

import tensorflow as tf

__all__ = ["is_branch", "is_for_xla", "new_scalar"]


def is_branch(graph: Any) -> bool:
    """Whether it is a side of a condition, or a loop's body or condition."""
    # Here, so that init() can say so where it is gone.
    from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

    return isinstance(graph, ControlFlowFuncGraph)


def is_for_xla(graph: Any) -> bool:
    """Whether XLA compiles it, or what it is a part of."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def new_scalar(name: str) -> tf.Variable:
    """A variable of float32 that is made outside of the function being traced.

    `tf.Variable` makes none where a function is traced again.
    """
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    with tf.init_scope():
        return ResourceVariable(0.0, trainable=False, name=name)
