"""Hosts that train apart, whose ranks average their gradients in every step."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ring_keras import _native
from ring_keras.job.process_set import ProcessSet, add_missing_process_sets
from ring_keras.optimizers.gradient_reducer import GradientReducer
from ring_keras.optimizers.gradient_values import Gradient
from ring_keras.optimizers.optimizer_hook import sources_of
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.senders import FirstOfHosts
from ring_keras.optimizers.step_scope import StepWeight, current_step

__all__ = ["HostsApart"]


class HostsApart:
    """This rank's host, among the others; to be made by all ranks together.

    Args:
        hosts: The name of each rank's host.
        process_set: All these ranks.

    Attributes:
        senders: Who sends on a thin wire.
    """

    def __init__(self, hosts: Sequence[str], process_set: ProcessSet) -> None:
        ranks_of: dict[str, list[int]] = {}
        for rank, host in zip(process_set.ranks, hosts, strict=True):
            ranks_of.setdefault(host, []).append(rank)
        wanted = [ProcessSet(ranks) for ranks in ranks_of.values()]
        wanted.append(ProcessSet([ranks[0] for ranks in ranks_of.values()]))
        # That of all ranks is there.
        sets = [
            process_set if one.ranks == process_set.ranks else one for one in wanted
        ]
        add_missing_process_sets(sets)
        self.count = len(ranks_of)
        """How many hosts there are."""
        self._own = sets[list(ranks_of).index(hosts[process_set.rank()])]
        self.process_sets = {self._own, sets[-1]} - {process_set}
        """Those of some ranks."""
        for one in self.process_sets:
            if one.included():
                # By the `fit` of another model, in which a rank failed.
                _native.forget_given_up(one.communicator_id())
        self.senders = FirstOfHosts(sets[-1], self._own)
        options = ReductionOptions(process_set=self._own, meets=True)
        self._reducer = GradientReducer(options)

    @property
    def ranks(self) -> list[int]:
        """Those of this rank's host."""
        return self._own.ranks

    def sum_factor(self, weight: StepWeight | None) -> tf.Tensor | float:
        """What makes the average of this host's gradients their sum.

        If each rank multiplies its own by that; collective among them.

        Args:
            weight: How much this rank counts in a step; None if all count the same.
        """
        if weight is None or not self._reducer.active:
            return float(self._own.size())
        weight = StepWeight(weight.amount, self._own)
        return tf.math.divide_no_nan(weight.total(), weight.amount)

    def average_gradients(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        amount: tf.Tensor | float,
        present: tf.Tensor | None,
    ) -> tuple[Sequence[Gradient], tf.Tensor | None]:
        """Those of this host; collective among its ranks.

        Args:
            gradients: Of this rank's batch.
            variables: Which they are of.
            amount: How much this rank counts.
            present: Whether it has a batch; None if it has.

        Returns:
            The averages, bitwise equal on all ranks of the host, and whether any of
            these has a batch.
        """
        if not self._reducer.active:
            return gradients, present
        weight = StepWeight(tf.cast(amount, tf.float64), self._own)
        averages = self._reducer.reduce(
            gradients, sources_of(variables, gradients), weight
        )
        # In a step that is not traced, each rank knows of its own batch alone.
        asks = tf.executing_eagerly() and current_step() is not None
        if present is None and not asks:
            return averages, None
        return averages, weight.total() > 0
