"""What is known while one training step is traced, or run eagerly.

The step's wrapper opens the scope; whoever reduces gradients inside it finds
this rank's weight there, and leaves word of the variables whose gradients were.
"""

import contextlib
import threading
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.step import in_a_step, one_step
from ring_keras.ops.training_step import enter_training_step
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["StepScope", "StepWeight", "current_step", "enter_step", "reduction_step"]


@dataclass(frozen=True)
class StepWeight:
    """How much this rank's gradients count in one step.

    Attributes:
        amount: Scalar of float64: what this rank's loss has been divided by, up
            to a factor common to all ranks, such as its number of examples.
        process_set: The ranks that train together.
    """

    amount: tf.Tensor
    process_set: ProcessSet

    def total(self) -> tf.Tensor:
        """The amounts of all ranks together; a collective of its own."""
        # A number, which the host knows.
        with tf.device("CPU:0"), in_a_step():
            return allreduce(
                self.amount,
                ReduceOp.SUM,
                name="train_step/weight",
                process_set=self.process_set,
            )

    def share(self) -> tf.Tensor:
        """This rank's part of all amounts, times the number of ranks.

        For gradients that are not reduced by a collective that takes `amount`
        along. 0 if all amounts are.
        """
        with tf.device("CPU:0"):
            scaled_amount = self.amount * self.process_set.size()
            return tf.math.divide_no_nan(scaled_amount, self.total())


@dataclass
class StepScope:
    """One training step.

    Attributes:
        process_set: The ranks that train together.
        weight: How much this rank counts; None where all count the same.
        present: Scalar, false where the batch is a row of zeros in place of none;
            None where it is what it looks like.
        compiled: Whether XLA compiles the step.
        summed_losses_for: The op, and the ranks that it combines, for which losses
            that add up have been prepared; None if there are none.
        communicated: Whether gradients have been reduced in this step.
        accumulates: Whether an eager step may be one that only accumulates.
        kept_own: Keys of those variables that a tape keeps on each rank.
        reduced: Keys of the variables whose gradients the ranks have reduced, or
            keep to themselves as they were told to.
        batch_normalizations: How many have asked for moments of all ranks.
        tape_gradients: What gradient tapes have returned, by `id`. Kept here,
            so that no other object gets the same `id`.
    """

    process_set: ProcessSet
    weight: StepWeight | None = None
    present: tf.Tensor | None = None
    compiled: bool = False
    summed_losses_for: tuple[ReduceOp, list[int]] | None = None
    communicated: bool = False
    accumulates: bool = False
    kept_own: set[Hashable] = field(default_factory=set)
    reduced: set[Hashable] = field(default_factory=set)
    batch_normalizations: int = 0
    tape_gradients: dict[int, Any] = field(default_factory=dict)

    def keeps_own(self, source: Any) -> bool:
        """Whether a tape has kept the gradient of this variable on its rank."""
        return (
            bool(self.kept_own)
            and not isinstance(source, str)
            and internals.variable_key(source) in self.kept_own
        )

    def note_reduced(self, sources: Iterable[Any]) -> None:
        """Takes down that the gradients of these variables have been reduced."""
        self.communicated = True
        self.reduced.update(
            internals.variable_key(source)
            for source in sources
            if not isinstance(source, str)
        )


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[StepScope] = []


_scopes = _Scopes()


def current_step() -> StepScope | None:
    """The innermost open scope of this thread."""
    return _scopes.stack[-1] if _scopes.stack else None


@contextlib.contextmanager
def enter_step(scope: StepScope) -> Iterator[None]:
    """Makes `scope` the current one."""
    amount = None if scope.weight is None else scope.weight.amount
    _scopes.stack.append(scope)
    try:
        with enter_training_step(amount, scope.present, compiled=scope.compiled):
            yield
    finally:
        _scopes.stack.pop()


def reduction_step(
    process_set: ProcessSet, plan: int = 0
) -> contextlib.AbstractContextManager[None]:
    """`one_step` of collectives over a process set.

    It is one of this rank's training if the ranks are those that train the model
    together; outside of a model's step that is all.
    """
    scope = current_step()
    trains = global_process_set if scope is None else scope.process_set
    return one_step(plan, is_of_training=trains.key() == process_set.key())
