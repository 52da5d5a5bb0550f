"""Has functions with collectives in them begin in the order of their calls.

TensorFlow runs what has effects in the order in which it was traced, but orders a call
of a function, a condition or a loop that uses variables by these alone, and nothing
in the gradient of a function. Two ranks could each begin another of two such calls
first; and where both have collectives of one name, as those without a name of their own
have, the ranks would get sums of one's tensors and the other's.

A call is made to wait for what has collectives and was traced before it, and what has
some and was traced after it waits for the call. So does each collective of a function
for XLA that `get_concrete_function` traces: there TensorFlow orders nothing that uses
no variables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["order_calls"]

# Ops that call functions, and the attributes that name these.
_CALLS = {
    "Case": ("branches",),
    "If": ("then_branch", "else_branch"),
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "StatelessCase": ("branches",),
    "StatelessIf": ("then_branch", "else_branch"),
    "StatelessWhile": ("cond", "body"),
    "While": ("cond", "body"),
}
# These hand on what XLA orders collectives by.
_ORDERS = frozenset(("RingKerasGiveOrder", "RingKerasTakeOrder"))

# Of a graph: how many of its operations are in order; the last of them that is, or
# calls, a collective; and, once it is whole, whether there is one.
_ORDERED = "_ring_keras_ordered"
_LAST = "_ring_keras_last_call"
# And those collectives since the last call that TensorFlow orders by variables alone.
_ASIDE = "_ring_keras_aside"
_HAS_COLLECTIVES = "_ring_keras_has_collectives"


def order_calls() -> None:
    """Does so in all graphs of functions that are traced from now on."""
    with contextlib.suppress(AttributeError, ImportError):  # init() says so.
        from tensorflow.python.framework import auto_control_deps
        from tensorflow.python.ops import gradients_util

        auto_control_deps.register_acd_resource_resolver(_ring_keras_calls)
        gradients_util._GradientsHelper = _ordered(gradients_util._GradientsHelper)


def _ring_keras_calls(operation: Any, _reads: Any, _writes: Any) -> bool:
    """TensorFlow asks it for the variables of each operation of a traced graph."""
    _order(operation.graph, every=False)
    return False


def _ordered(gradients: Any) -> Any:
    """The function that traces gradients, followed by the same."""

    def ordered(*args: Any, **kwargs: Any) -> Any:
        result = gradients(*args, **kwargs)
        graph = _default_graph()
        # With a graph around it, it is of a function. Where TensorFlow will order it,
        # `_ring_keras_calls` does.
        if hasattr(graph, "control_outputs") and not graph._add_control_dependencies:
            last = _order(graph, every=True)
            if last is not None and last not in graph.control_outputs:
                graph.control_outputs = [*graph.control_outputs, last]
        return result

    return ordered


def _default_graph() -> Any:
    import tensorflow as tf

    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _order(graph: Any, *, every: bool) -> Any:
    """Orders what is new in a graph.

    Args:
        graph: Of a function.
        every: Whether collectives that follow each other are ordered, too; else
            TensorFlow has done it.

    Returns:
        The last operation that is or calls a collective, if there is one.
    """
    known, count = getattr(graph, _ORDERED, 0), graph.num_operations()
    last, aside = getattr(graph, _LAST, None), getattr(graph, _ASIDE, ())
    if known == count:
        return last
    for operation in graph.get_operations()[known:]:
        calls = operation.type in _CALLS
        if not (calls or _is_collective(operation)):
            continue
        if calls and not any(map(_has_collectives, _functions_of(operation))):
            continue
        # As in `get_concrete_function` with `jit_compile`.
        context = operation._control_flow_context
        is_aside = context is None and not (every or calls)
        is_aside = is_aside and _uses_variables(operation)
        if calls and context is None:
            for earlier in aside:
                operation._add_control_input(earlier)
            aside = ()
        if (
            last is not None
            and context is last._control_flow_context
            and (every or context is not None or calls or last.type in _CALLS)
        ):
            operation._add_control_input(last)
        if is_aside:
            aside = (*aside, operation)
        else:
            last = operation
    setattr(graph, _ORDERED, count)
    setattr(graph, _LAST, last)
    setattr(graph, _ASIDE, aside)
    return last


def _is_collective(operation: Any) -> bool:
    """Whether it makes a request, or hands on the order of those that do."""
    if not operation.type.startswith("RingKeras"):
        return False
    return operation.type in _ORDERS or any(
        attribute.name == "request_name" for attribute in operation.op_def.attr
    )


def _uses_variables(operation: Any) -> bool:
    return any(value.dtype.name == "resource" for value in operation.inputs)


def _functions_of(operation: Any) -> Iterator[Any]:
    """The graphs of those that it calls."""
    for attribute in _CALLS[operation.type]:
        value = operation.get_attr(attribute)
        for function in value if isinstance(value, list) else [value]:
            found = operation.graph._get_function(function.name)
            if found is not None:
                yield found.graph


def _has_collectives(graph: Any) -> bool:
    has: bool | None = getattr(graph, _HAS_COLLECTIVES, None)
    if has is None:
        has = any(
            any(map(_has_collectives, _functions_of(operation)))
            if operation.type in _CALLS
            else _is_collective(operation)
            for operation in graph.get_operations()
        )
        setattr(graph, _HAS_COLLECTIVES, has)
    return has
