"""A part of a model's weights that meets by itself, where ranks train apart."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ring_keras.optimizers.meeting_hook import MeetingHook

__all__ = ["Fragment"]

# Of the weights after a meeting that has ended some steps after it began.
_OWN_PART = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Fragment:
    """Whole variables, and what is kept of them from one meeting to the next.

    Attributes:
        number: Of the fragment.
        variables: The weights.
        met: What they were when the ranks had met.
        apart: How much this rank has trained since.
        residuals: What this rank's parts of the averages so far have lacked, by
            variable; none on a wire that leaves nothing out.
        hook: By which the ranks meet.
        outer: The optimizer of the meetings.
        wire: How changes travel, one of `WIRES`.
        is_in_turn: Whether a window has no moment at which all weights have just met.
        ends_window: Whether it is the last one in a window.
    """

    number: int
    variables: Sequence[Any]
    met: Sequence[Any]
    apart: Any
    residuals: Sequence[Any]
    hook: MeetingHook
    outer: keras.optimizers.Optimizer
    wire: str
    is_in_turn: bool
    ends_window: bool

    def meet(self) -> None:
        """Gives all ranks the same weights; collective."""
        amount = tf.convert_to_tensor(self.apart)
        changes = self.changes()
        change_square = self.hook.log.square_of(changes)
        averages = self.hook.average(
            changes, self.variables, amount, self.wire, self.residuals
        )
        self._take(averages, amount, change_square)
        self.apart.assign(0)

    def depart(self) -> None:
        """Begins a meeting, whose averages `merge` waits for; collective."""
        changes = self.changes()
        self.hook.depart(
            self.number,
            changes,
            tf.convert_to_tensor(self.apart),
            self.hook.log.square_of(changes),
        )

    def go_on(self, exchange: int) -> None:
        """Between the two, where a meeting takes several exchanges."""
        self.hook.go_on(self.number, exchange, self.residuals)

    def merge(self) -> None:
        """Ends a meeting that has begun some steps ago."""
        amount = self.hook.amount_under_way(self.number)
        change_square = self.hook.change_under_way(self.number)
        # Only now: a meeting that is forgotten has taken nothing away.
        self.apart.assign(self.unsent_amount())
        averages = self.hook.arrive(self.number, self.residuals)
        own = [tf.identity(tf.convert_to_tensor(one)) for one in self.variables]
        self._take(averages, amount, change_square)
        for variable, value in zip(self.variables, own, strict=True):
            common = tf.convert_to_tensor(variable)
            variable.assign(common + _OWN_PART * (value - common))

    def is_under_way(self) -> tf.Tensor:
        """Whether a meeting has begun and not ended; with `overlap_steps`."""
        return self.hook.is_under_way(self.number)

    def unsent_amount(self) -> tf.Tensor:
        """What this rank has trained on since the last meeting has begun."""
        amount = tf.convert_to_tensor(self.apart)
        return amount - self.hook.amount_under_way(self.number)

    def return_to_met(self) -> None:
        """The weights become those of the last meeting."""
        for variable, before in zip(self.variables, self.met, strict=True):
            variable.assign(before)

    def forget_own(self) -> None:
        """As on a rank that begins here: it brings nothing to the next meeting."""
        for variable in [self.apart, *self.residuals]:
            variable.assign(tf.zeros_like(variable))

    def changes(self) -> list[tf.Tensor]:
        """Of the weights, since they have met, with the sign of gradients."""
        return [
            tf.convert_to_tensor(before) - tf.convert_to_tensor(variable)
            for before, variable in zip(self.met, self.variables, strict=True)
        ]

    def _take(
        self, averages: Sequence[Any], amount: tf.Tensor, change_square: tf.Tensor
    ) -> None:
        """Makes the weights those of the meeting, and logs it."""
        self.return_to_met()
        windows = tf.convert_to_tensor(self.outer.iterations)
        # Momentum would move those that have been frozen since.
        trained = [index for index, v in enumerate(self.variables) if v.trainable]
        self.outer.apply(
            [averages[index] for index in trained],
            [self.variables[index] for index in trained],
        )
        # The meetings of a window are one update.
        self.outer.iterations.assign(windows + int(self.ends_window))
        self.hook.log.note(
            self.number, amount, change_square, averages, self.met, self.variables
        )
        if self.is_in_turn:
            for before, variable in zip(self.met, self.variables, strict=True):
                before.assign(variable)
