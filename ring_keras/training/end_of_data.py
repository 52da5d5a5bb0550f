"""Ranks that do not know their number of steps notice where one has no more."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ring_keras import _native
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.reduce_op import ReduceOp

__all__ = ["EndOfData"]

_NAME = "fit/next_step"
_UNEVEN = "ring_keras: a rank has run out of data"


class EndOfData:
    """Asks all ranks, before each step, whether it will take place.

    Without it, a rank whose generator ends early would leave the others waiting
    for its gradients. It costs an allreduce of 8 bytes per step.

    Args:
        process_set: Gives the ranks that train together.
    """

    def __init__(self, process_set: Callable[[], ProcessSet]) -> None:
        self._process_set = process_set
        self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    def begin_epoch(self) -> None:
        """Steps are counted from here."""
        self._steps.assign(0)

    def before_step(self) -> None:
        """Part of the step, on a rank that has a batch for it."""
        goes_on_or_ended = allreduce(
            tf.constant([1, 0], tf.int32),
            ReduceOp.MAX,
            name=_NAME,
            process_set=self._process_set(),
        )
        ended = goes_on_or_ended[1]
        tf.debugging.assert_equal(ended, 0, _UNEVEN)
        self._steps.assign_add(tf.cast(1 - ended, tf.int64))

    def out_of_data(self) -> None:
        """In place of the step, on a rank that has none.

        Raises:
            RankMismatchError: If another rank has.
        """
        goes_on_or_ended = _native.allreduce(
            np.array([0, 1], np.int32),
            op=ReduceOp.MAX.value,
            name=_NAME,
            communicator_id=self._process_set().communicator_id(),
        )
        if goes_on_or_ended[0]:
            raise self._uneven(ended=True)

    def explain(self, error: tf.errors.InvalidArgumentError) -> None:
        """Raises what a step's error means, if it comes from `before_step`.

        Raises:
            RankMismatchError: If another rank has run out of data.
        """
        if _UNEVEN in str(error):
            raise self._uneven(ended=False) from error

    def _uneven(self, *, ended: bool) -> RankMismatchError:
        process_set = self._process_set()
        flags = _native.allgather(
            np.array([ended]), "fit/ended", process_set.communicator_id()
        )
        ranks = process_set.ranks
        have_ended = [r for r, flag in zip(ranks, flags, strict=True) if flag]
        go_on = [r for r, flag in zip(ranks, flags, strict=True) if not flag]
        return RankMismatchError(
            "[RK318] "
            f"fit(): after {int(self._steps.numpy())} steps of the epoch ranks "
            f"{have_ended} have run out of data, ranks {go_on} have more. Wrap the "
            "dataset in ring_keras.data.join(), which lets the others go on, or give "
            "every rank as many batches: ring_keras.data.shard() or steps_per_epoch."
        )
