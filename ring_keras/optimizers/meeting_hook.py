"""The hook of an optimizer whose ranks train apart, and meet every so many steps."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError, RingKerasError
from ring_keras.job.process_set import generation
from ring_keras.keras_internals import calls
from ring_keras.ops.objects import allgather_object
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.step_scope import (
    StepWeight,
    current_step,
    reduction_step,
)
from ring_keras.optimizers.wires import THIN_WIRES, average_thinly

__all__ = ["MeetingHook", "Terms", "meeting_optimizers"]

Terms: TypeAlias = dict[str, Any]
"""What the ranks must have in common to meet: plain values, by their names."""


class MeetingHook(OptimizerHook):
    """Reduces no gradients, but what the ranks' weights have become since they met.

    The optimizer calls it: it takes its steps itself, by another one inside. It is a
    hook so that all who ask whether, and with whom, an optimizer trains find it.
    """

    _agreed_in: int | None = None
    """The generation whose ranks have agreed on the terms."""

    def _build(self, variables: Sequence[Any]) -> None:
        self._refuse_around()
        type(self._optimizer).build(self._optimizer, variables)

    def begin_step(
        self, terms: Terms, fragments: Sequence[Sequence[Any]]
    ) -> tf.Tensor | float:
        """Before each step of this rank; the first time collective.

        Args:
            terms: See `Terms`.
            fragments: The variables of each meeting.

        Returns:
            How much the step counts, as against those of other ranks.

        Raises:
            RankMismatchError: On every rank, if their terms or variables differ.
        """
        self._refuse_around()
        step = current_step()
        if step is not None:
            # Each rank keeps its gradients to itself, as it was told to.
            step.note_reduced(v for variables in fragments for v in variables)
        if self._reducer.active:
            self._agree(terms)
            # Now, as the weights differ when they meet: they are compared with it.
            for variables in fragments:
                self._reducer.agree(variables)
        weight = self._reducer.step_weight()
        return 1.0 if weight is None else weight.amount

    def average(
        self,
        values: Sequence[tf.Tensor],
        variables: Sequence[Any],
        amount: tf.Tensor,
        wire: str,
        residuals: Sequence[Any],
    ) -> list[Any]:
        """The ranks' values, weighted; collective, and one step of the engine.

        Args:
            values: One for each variable.
            variables: Those that meet.
            amount: How much this rank counts.
            wire: How they travel, one of `WIRES`.
            residuals: Variables for what stays with this rank; none where nothing does.
        """
        weight = StepWeight(amount, self.process_set)
        if wire not in THIN_WIRES:
            return self._reducer.combine(values, variables, weight)
        left = [tf.convert_to_tensor(residual) for residual in residuals]
        if self._reducer.active:
            with reduction_step(self.process_set):
                share = weight.share() / self.process_set.size()
                averages, left = average_thinly(
                    wire, values, left, share, self.process_set
                )
        else:
            averages = [
                value + tf.cast(one, value.dtype)
                for value, one in zip(values, left, strict=True)
            ]
            left = [tf.zeros_like(one) for one in left]
        for residual, one in zip(residuals, left, strict=True):
            residual.assign(one)
        return averages

    def _agree(self, terms: Terms) -> None:
        with tf.init_scope():
            # Else a graph of TensorFlow 1.
            if self._agreed_in == generation() or not tf.executing_eagerly():
                return
            everyones = allgather_object(
                terms, name="far_apart/terms", process_set=self.process_set
            )
        ranks = self.process_set.ranks
        for rank, theirs in zip(ranks, everyones, strict=True):
            for what, value in everyones[0].items():
                if theirs[what] != value:
                    raise RankMismatchError(
                        "[RK342] "
                        f"optimizer '{self._optimizer.name}': {what} differs across "
                        f"ranks: rank {ranks[0]} has {value}, rank {rank} has "
                        f"{theirs[what]}. Give every rank the same, or the ranks "
                        "would not meet."
                    )
        self._agreed_in = generation()

    def _refuse_around(self) -> None:
        """It would skip steps by this rank's gradients, and so the ranks' meetings."""
        wrapper = calls.calling_loss_scale_optimizer()
        if wrapper is not None and self._optimizer in internals.inner_optimizers(
            wrapper
        ):
            raise RingKerasError(
                "[RK344] "
                f"optimizer '{self._optimizer.name}', with sync_every, is inside of a "
                "LossScaleOptimizer, which skips steps on the ranks whose gradients "
                "are not finite: the ranks would not meet. Put it inside, and have "
                "compile() add none: ring_keras.DiLoCo(keras.optimizers."
                "LossScaleOptimizer(inner), ...) and "
                "compile(..., auto_scale_loss=False)."
            )


def meeting_optimizers(model: keras.Model) -> list[Any]:
    """Those of a model whose ranks meet every so many steps."""
    return [
        optimizer
        for optimizer in internals.optimizers_of(model)
        if isinstance(OptimizerHook.of(optimizer), MeetingHook)
    ]
