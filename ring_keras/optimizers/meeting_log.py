"""What the last meetings of ranks that train apart were, while somebody looks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

__all__ = ["MOST_MEETINGS", "LoggedMeeting", "MeetingLog"]

MOST_MEETINGS = 64
"""So many are kept; of more between two looks the first ones are lost."""

_NOBODY_LOOKED = -1.0


class LoggedMeeting(NamedTuple):
    """One meeting of a fragment, as this rank saw it.

    Attributes:
        fragment: Its number.
        amount: How much this rank counted; in `fit` by its examples.
        change_square: The squared norm of what this rank's weights had changed by.
        average_square: That of the ranks' average, as it arrived.
        update_norm: The norm of what the outer optimizer has added to the weights.
    """

    fragment: int
    amount: float
    change_square: float
    average_square: float
    update_norm: float


class MeetingLog:
    """Kept in the process: no file or copy of an optimizer has it.

    Whether somebody looks is a variable, so a step that has been traced need not be
    traced again. If nobody does, no norm is computed.
    """

    def __init__(self) -> None:
        self._is_watched: tf.Variable | None = None
        self._wanted = False

    def prepare(self) -> None:
        """Before `square_of` and `note`: makes what steps write to."""
        with tf.init_scope():
            self._is_watched = tf.Variable(self._wanted, trainable=False)
            self._count = tf.Variable(0, trainable=False, dtype=tf.int64)
            rows = tf.zeros([MOST_MEETINGS, len(LoggedMeeting._fields)], tf.float64)
            self._rows = tf.Variable(rows, trainable=False)

    def watch(self, wanted: bool) -> None:
        """Has meetings be logged from now on, or no more."""
        self._wanted = wanted
        if self._is_watched is not None:
            self._is_watched.assign(wanted)

    @property
    def count(self) -> int:
        """How many have been logged in all."""
        return 0 if self._is_watched is None else int(self._count)

    def since(self, count: int) -> list[LoggedMeeting]:
        """Those after so many, the earliest first; the last `MOST_MEETINGS` at most."""
        until = self.count
        if until == count:
            return []
        rows = np.asarray(self._rows)
        numbers = range(max(count, until - MOST_MEETINGS), until)
        found = (rows[number % MOST_MEETINGS].tolist() for number in numbers)
        return [LoggedMeeting(int(fragment), *rest) for fragment, *rest in found]

    def square_of(self, changes: Sequence[tf.Tensor]) -> tf.Tensor:
        """What `note` takes, of what a rank is about to send."""
        assert self._is_watched is not None
        return tf.cond(
            self._is_watched.read_value(),
            lambda: _square(changes),
            lambda: tf.constant(_NOBODY_LOOKED, tf.float64),
        )

    def note(
        self,
        fragment: int,
        amount: tf.Tensor,
        change_square: tf.Tensor,
        averages: Sequence[tf.Tensor],
        before: Sequence[Any],
        after: Sequence[Any],
    ) -> None:
        """Logs a meeting, unless nobody looks, or looked when it began.

        Args:
            fragment: Its number.
            amount: See `LoggedMeeting`.
            change_square: From `square_of`.
            averages: What has arrived.
            before: The weights of the meeting before.
            after: Those of this one; variables, like `before`.
        """
        assert self._is_watched is not None

        def write() -> tf.Tensor:
            update = [
                tf.convert_to_tensor(new) - tf.convert_to_tensor(old)
                for old, new in zip(before, after, strict=True)
            ]
            row = LoggedMeeting(
                tf.constant(fragment, tf.float64),
                tf.cast(amount, tf.float64),
                change_square,
                _square(averages),
                tf.sqrt(_square(update)),
            )
            place = self._count.read_value() % MOST_MEETINGS
            is_here = tf.range(MOST_MEETINGS, dtype=tf.int64)[:, tf.newaxis] == place
            self._rows.assign(tf.where(is_here, tf.stack(row), self._rows.read_value()))
            self._count.assign_add(1)
            return tf.constant(True)

        is_due = tf.logical_and(
            self._is_watched.read_value(), change_square != _NOBODY_LOOKED
        )
        tf.cond(is_due, write, lambda: tf.constant(False))


def _square(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The squared norm of all together."""
    # Of a type that does not overflow; in float64 they would take twice the memory.
    halves = (tf.nn.l2_loss(tf.cast(one, tf.float32)) for one in tensors)
    return 2 * tf.add_n([tf.cast(half, tf.float64) for half in halves])
