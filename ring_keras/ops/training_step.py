"""What a collective must know of the training step in which it is called.

The step's wrapper opens it (`optimizers/step_scope.py`), for collectives of the user's
own: in a layer, a loss or a `train_step`.

A step weights each rank's gradients by its number of examples. A gradient that has come
from other ranks' losses is weighted by theirs, so on its way it is multiplied by the
sender's, and divided by that of the rank it comes to. A rank that has no batch computes
with a row of zeros in place of one, which must not reach the others.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.keras_internals.graphs import is_branch
from ring_keras.ops.branch_order import in_branch_order
from ring_keras.ops.step import in_a_step, in_order

__all__ = [
    "TrainingStep",
    "divided_by_own_amount",
    "dtype_on_its_way",
    "enter_training_step",
    "in_training_step",
    "may_lack_examples",
    "multiplied_by_own_amount",
    "note_weighted",
    "own_example_rows",
    "require_examples",
    "require_same_ranks",
    "require_unweighted",
]


_WEIGHTED = (
    "and in this step gradients have come from other ranks' losses, by a synchronized "
    "batch normalization or a collective, weighted by examples as an average needs it"
)


@dataclass
class TrainingStep:
    """The one that is traced, or run, now.

    Attributes:
        amount: Scalar of float64: how much this rank's gradients count; None where all
            ranks' count the same.
        present: Scalar, false where the batch is a row of zeros in place of none; None
            where it is what it looks like.
        compiled: Whether XLA compiles it.
        graph: In which it is traced; None if it runs eagerly.
        weighted: Whether gradients have come from other ranks' losses by `amount`.
    """

    amount: tf.Tensor | None
    present: tf.Tensor | None
    compiled: bool
    graph: Any
    weighted: bool = False


class _Scope(threading.local):
    step: TrainingStep | None = None


_scope = _Scope()


@contextlib.contextmanager
def enter_training_step(
    amount: tf.Tensor | None, present: tf.Tensor | None, *, compiled: bool
) -> Iterator[None]:
    """Makes a step of these the current one; see `TrainingStep`."""
    outer, step = _scope.step, TrainingStep(amount, present, compiled, _graph())
    _scope.step = step
    try:
        yield
    finally:
        _scope.step = outer


@contextlib.contextmanager
def in_training_step() -> Iterator[None]:
    """For one collective: one that `fit` gives up if a rank fails before it.

    Not in a condition, a loop or a `tf.function` of the user's inside of the training
    step: nothing says in which order ranks come there.
    """
    step = _scope.step
    if step is None or step.graph is not _graph():
        with in_branch_order():
            yield
        return
    with in_order(), in_a_step():
        yield


def own_example_rows(tensor: tf.Tensor) -> tf.Tensor:
    """How many rows of a tensor are of examples: none where a row of zeros is."""
    rows = tf.shape(tensor)[0]
    step = _reached()
    if step is None or step.present is None:
        return rows
    return tf.where(step.present, rows, 0)


def may_lack_examples() -> bool:
    """Whether this step finds out if it has a batch."""
    step = _reached()
    return step is not None and step.present is not None


def multiplied_by_own_amount(upstream: Any) -> tf.Tensor:
    """What this rank's loss sends to others', as they must add it up.

    Returns:
        A tensor of 32 bits where it was one of 16, in which sums would overflow.
    """
    upstream = tf.convert_to_tensor(upstream)
    step = _reached()
    if step is None:
        return upstream
    if step.amount is None:  # All count the same, but who has no batch.
        if step.present is None:
            return upstream
        return tf.where(step.present, upstream, tf.zeros_like(upstream))
    note_weighted()
    wide = dtype_on_its_way(upstream.dtype)
    sent = tf.cast(upstream, wide) * tf.cast(step.amount, wide)
    # What comes of no examples may be NaN.
    return tf.where(step.amount > 0, sent, 0)


def note_weighted() -> None:
    """What comes from other ranks' losses now is right in an average by `amount`."""
    if _scope.step is not None:
        _scope.step.weighted = True


def require_unweighted(op: str) -> None:
    """Before gradients of this step are reduced by an op that does not average.

    Raises:
        RingKerasError: If some were weighted for an average.
    """
    if _scope.step is not None and _scope.step.weighted:
        raise RingKerasError(
            f"[RK416] with op='{op}' all ranks count alike, {_WEIGHTED}. Use "
            f"DistributedGradientTape(tape, op='{op}') and an optimizer that is not "
            "distributed, or average: leave out op, and take the mean as the loss."
        )


def require_same_ranks() -> None:
    """Before gradients of this step are averaged among others than the step's ranks.

    Raises:
        RingKerasError: If some were weighted for an average among those.
    """
    if _scope.step is not None and _scope.step.weighted:
        raise RingKerasError(
            "[RK416] the optimizer has another process set than the step, "
            f"{_WEIGHTED}, among other ranks. Give both the same process_set."
        )


def dtype_on_its_way(dtype: tf.DType) -> tf.DType:
    """Of what `multiplied_by_own_amount` returns of a tensor of `dtype`."""
    step = _reached()
    if step is None or step.amount is None or dtype == tf.float64:
        return dtype
    return tf.float32


def divided_by_own_amount(total: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The sum of what others have sent, as this rank's own will be weighted."""
    step = _reached()
    if step is None or step.amount is None:
        return tf.cast(total, dtype)
    # Of a batch that counts for nothing it would be infinite.
    counts = step.amount > 1e10 * internals.NO_WEIGHT
    own = tf.math.divide_no_nan(total, tf.cast(step.amount, total.dtype))
    return tf.cast(tf.where(counts, own, 0), dtype)


def require_examples(
    function: str, name: str, unless: bool | tf.Tensor = False
) -> contextlib.AbstractContextManager[Any]:
    """What is traced inside is the gradient of a collective that needs each rank's.

    Args:
        function: Whose gradient it is.
        name: Of the collective.
        unless: Whether a row of zeros has had no part in it.

    Raises:
        RingKerasError: If XLA compiles a step some of whose batches may be empty; else
            when it runs, on a rank that has none.
    """
    step = _reached()
    if step is None or step.present is None or unless is True:
        return contextlib.nullcontext()
    text = (
        f"[RK414] {function} {name} is in a loss, and this rank has no examples in "
        "this step: what it would give to the others, or get from them, is of a row "
        "of zeros. ring_keras.allgather leaves such a rank out."
    )
    if step.compiled:
        text += (
            " XLA cannot tell, so this is for any step whose batch may be empty: "
            "compile(jit_compile=False) raises where one is."
        )
        raise RingKerasError(text)  # It begins with [RK414].
    right = tf.logical_or(step.present, unless)
    holds = tf.debugging.Assert(right, [f"RingKerasError: {text}"])
    after: contextlib.AbstractContextManager[Any] = tf.control_dependencies([holds])
    return after


def _reached() -> TrainingStep | None:
    """The step in whose graph, or in a branch of it, something is traced now.

    A `tf.function` of the user's is traced once, maybe elsewhere, for all steps: it
    knows of none.
    """
    step, graph = _scope.step, _graph()
    if step is None:
        return None
    while graph is not step.graph and is_branch(graph):
        graph = graph.outer_graph
    if graph is step.graph:
        return step
    if step.amount is not None:
        _warn_of_function()
    return None


@functools.cache  # Once.
def _warn_of_function() -> None:
    logging.warning(
        "ring_keras: [RK415] "
        "a tf.function that a training step calls has a collective with a gradient. It "
        "is not known there how many examples each rank has, so they count alike. "
        "Leave @tf.function out: the training step is one already."
    )


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
