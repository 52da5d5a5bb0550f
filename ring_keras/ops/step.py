"""Steps: collectives that belong together, in all ranks or in none."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ring_keras.errors import RingKerasError
from ring_keras.keras_internals.graphs import is_branch, is_for_xla
from ring_keras.ops.branch_order import begin_collectives, end_collectives
from ring_keras.ops.request_names import in_unordered_graph

__all__ = [
    "collectives_allowed",
    "collectives_refused",
    "in_a_step",
    "in_order",
    "one_step",
    "step_plan",
    "step_role",
]


@dataclass
class _Step:
    plan: int
    is_of_training: bool
    begun: bool = False


class _Scope(threading.local):
    step: _Step | None = None
    refuses: bool = False


_scope = _Scope()


@contextlib.contextmanager
def one_step(plan: int = 0, *, is_of_training: bool = True) -> Iterator[None]:
    """Makes one step of the collectives that are traced, or run, inside.

    Each execution is the next step of their communicator, which has to be the
    same for all. A collective meets those of the same step only: a rank that
    failed between two of them, and went on, would else be one step ahead in the
    second from then on. If ranks are in different steps, all get a
    `RankMismatchError`, and can go on with the next.

    Each name may be used once.

    Args:
        plan: Number of the plan that the step follows. If ranks follow different
            plans, all get a `RankMismatchError`, as they do if their tensors differ.
            0 for none.
        is_of_training: Whether it is one of those that `ring_keras.stats()` has.
    """
    outer, _scope.step = _scope.step, _Step(plan, is_of_training)
    begin_collectives()
    try:
        yield
    finally:
        _scope.step = outer
    end_collectives()


@contextlib.contextmanager
def in_a_step() -> Iterator[None]:
    """Makes what is traced, or run, inside a step of its own, if it is in none.

    For a collective of a training step that comes before those of its gradients: a rank
    that fails before it has told the others that it gives the next step up, so they do
    not wait for it.
    """
    if _scope.step is not None:
        yield
        return
    with one_step(is_of_training=False):
        yield


@contextlib.contextmanager
def collectives_refused(are_refused: bool) -> Iterator[None]:
    """No collective may be traced, or run, inside, since some ranks never come there.

    Args:
        are_refused: Whether it is so, or not any more.
    """
    before, _scope.refuses = _scope.refuses, are_refused
    try:
        yield
    finally:
        _scope.refuses = before


def collectives_allowed() -> contextlib.AbstractContextManager[None]:
    """Where others are refused: those inside are known to be taken by all ranks."""
    return collectives_refused(False)


# Of a graph: what its next collectives must come after; and which operation will be the
# next, where one of the next is a condition or loop of the user's that has some.
_LAST = "_ring_keras_last_collectives"
_AWAITED_FROM = "_ring_keras_branches_from"

_BRANCHING = ("Case", "If", "While")


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Has steps that are traced inside come after those traced before in this graph.

    TensorFlow runs the collectives of a function in the order in which they were
    traced; but not conditionals with collectives in them, as an optimizer makes that
    accumulates gradients: those it orders by the variables that they use. Two of them
    would begin their steps in another order on each rank. So does what is traced in a
    condition or loop of the user's come after what was traced before that, and what is
    traced after that after it.
    """
    if tf.executing_eagerly() or in_unordered_graph():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    last = _last(graph)
    yield
    traced = graph.get_operations()[before:]
    conditionals = [op for op in traced if op.type == "If"]
    collectives = [op for op in traced if op.type.startswith("RingKeras")]
    # Not by tf.control_dependencies(): variables may have been made inside.
    for op in (*conditionals, *collectives[:1]):
        op._add_control_inputs(last)
    if conditionals or collectives:
        setattr(graph, _LAST, [*conditionals, *collectives[-1:]])
        setattr(graph, _AWAITED_FROM, None)  # It is one of these.


def _last(graph: Any) -> list[tf.Operation]:
    """What the next collectives that are traced in a graph must come after."""
    if is_branch(graph) and not hasattr(graph, _LAST) and not is_for_xla(graph):
        outer = graph.outer_graph
        with outer.as_default():
            # It becomes an input of the condition.
            token = tf.constant(0)
            token.op._add_control_inputs(_last(outer))
        setattr(graph, _LAST, [tf.identity(token).op])
        setattr(outer, _AWAITED_FROM, len(outer.get_operations()))
    last: list[tf.Operation] = getattr(graph, _LAST, [])
    awaited_from = getattr(graph, _AWAITED_FROM, None)
    setattr(graph, _AWAITED_FROM, None)
    operations = [] if awaited_from is None else graph.get_operations()[awaited_from:]
    for operation in operations:
        if operation.type.removeprefix("Stateless") in _BRANCHING:
            last = [*last, operation]
            setattr(graph, _LAST, last)
            break
    return last


def step_role() -> str:
    """What the collective that is traced now is to its step, for its op.

    Raises:
        RingKerasError: If none may be.
    """
    if _scope.refuses:
        raise RingKerasError(
            "[RK355] "
            "with `pace`, ranks take different numbers of batches, so a step may not "
            "communicate but where the ranks meet: others would not be there. A layer "
            "with synchronized=True, ring_keras.layers.SyncBatchNormalization, a "
            "DistributedGradientTape or a collective in train_step() does. Leave it "
            "out, or pace."
        )
    step = _scope.step
    # There operations run in any order, so none can be the first.
    if step is None or in_unordered_graph():
        return "none"
    if step.begun:
        return "continues"
    step.begun = True
    return "begins" if step.is_of_training else "begins_apart"


def step_plan() -> int:
    """The plan that the step follows of which a collective is traced now."""
    return 0 if _scope.step is None else _scope.step.plan
