"""What the last meetings were, in the variables of one process."""

from __future__ import annotations

import tensorflow as tf

from ring_keras.optimizers.meeting_log import MOST_MEETINGS, LoggedMeeting, MeetingLog


def meet(log: MeetingLog, amount: int) -> None:
    """One of two weights of 16 bits, whose squares these cannot hold."""
    changes = [tf.constant([300.0], tf.float16), tf.constant([400.0], tf.float16)]
    before, after = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 4.0])
    square = log.square_of(changes)
    log.note(1, tf.constant(amount, tf.float64), square, changes[:1], [before], [after])


def test_the_last_ones_are_kept() -> None:
    log = MeetingLog()
    log.watch(True)  # Before there is anything to watch.
    assert (log.count, log.since(0)) == (0, [])
    log.prepare()
    for amount in range(MOST_MEETINGS + 6):
        meet(log, amount)

    assert log.count == MOST_MEETINGS + 6
    every = log.since(0)
    assert [one.amount for one in every] == list(range(6, MOST_MEETINGS + 6))
    assert log.since(MOST_MEETINGS + 4) == every[-2:]
    assert every[0] == LoggedMeeting(1, 6.0, 250000.0, 90000.0, 2.0)


def test_what_began_while_nobody_looked_is_left_out() -> None:
    log = MeetingLog()
    log.prepare()
    changes = [tf.constant([1.0])]
    square = log.square_of(changes)
    log.watch(True)
    weight = tf.Variable([1.0])
    log.note(0, tf.constant(1.0), square, changes, [weight], [weight])
    assert log.count == 0

    meet(log, 1)
    log.watch(False)
    meet(log, 2)
    assert [one.amount for one in log.since(0)] == [1.0]
