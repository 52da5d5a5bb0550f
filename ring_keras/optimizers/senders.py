"""Which ranks send something at a meeting on a thin wire, and for whom."""

import contextlib

import tensorflow as tf

from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.broadcast import grouped_broadcast
from ring_keras.ops.grouped_allreduce import grouped_allreduce
from ring_keras.ops.step import one_step
from ring_keras.optimizers.step_scope import StepWeight, reduction_step
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["FirstOfHosts", "Senders"]


class Senders:
    """Each rank for itself.

    Args:
        process_set: Those that send.
        plan: On which they have agreed; 0: none.
    """

    def __init__(self, process_set: ProcessSet, plan: int = 0) -> None:
        self.process_set = process_set
        self._plan = plan

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Of collectives among those that send."""
        return reduction_step(self.process_set, self._plan)

    def amount(self, amount: tf.Tensor) -> tf.Tensor:
        """How much what this rank may send counts, if it counts so much itself."""
        return amount

    def share(self, amount: tf.Tensor) -> tf.Tensor:
        """The part of the average, of an amount of all; collective, in a step."""
        with tf.device("CPU:0"):
            (total,) = grouped_allreduce(
                [amount],
                ReduceOp.SUM,
                name="far_apart/amount",
                process_set=self.process_set,
            )
            return tf.math.divide_no_nan(amount, total)

    def hand_on(self, averages: list[tf.Tensor]) -> list[tf.Tensor]:
        """From those that have sent to all; those of others are of any value."""
        return averages


class FirstOfHosts(Senders):
    """The first rank of each host for the host, whose ranks have the same values.

    Each set of ranks takes steps of its own.

    Args:
        firsts: The first ranks.
        own: The ranks of this one's host.
    """

    def __init__(self, firsts: ProcessSet, own: ProcessSet) -> None:
        super().__init__(firsts)
        self._own = own

    def step(self) -> contextlib.AbstractContextManager[None]:
        """It is none of the training of all."""
        return one_step(is_of_training=False)

    def amount(self, amount: tf.Tensor) -> tf.Tensor:
        """That of the host; collective among its ranks."""
        if self._own.size() == 1:
            return amount
        return StepWeight(amount, self._own).total()

    def hand_on(self, averages: list[tf.Tensor]) -> list[tf.Tensor]:
        """From the host's first rank; collective among its ranks."""
        if self._own.size() == 1:
            return averages
        averages = list(averages)
        by_dtype: dict[tf.DType, list[int]] = {}
        for index, value in enumerate(averages):
            by_dtype.setdefault(value.dtype, []).append(index)
        with one_step(is_of_training=False):
            # A broadcast is in no step, and would wait for a rank that gives this up.
            with tf.control_dependencies(averages):
                allreduce(
                    tf.constant(0.0),
                    ReduceOp.SUM,
                    name="far_apart/of_host",
                    process_set=self._own,
                )
            for dtype, indices in by_dtype.items():
                received = grouped_broadcast(
                    [averages[index] for index in indices],
                    self._own.ranks[0],
                    name=f"far_apart/of_host/{dtype.name}",
                    process_set=self._own,
                )
                for index, value in zip(indices, received, strict=True):
                    averages[index] = value
        return averages
