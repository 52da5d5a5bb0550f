"""The updates of an optimizer whose state is divided: each variable's by one rank.

All ranks have all gradients, reduced and clipped. One rank has what the optimizer keeps
for a variable, and updates it; then the others take the variable from that rank. So
each update is computed by Keras's own methods, from the same numbers, and all ranks
have the same bits.

What each rank trains for itself (`local_layers`) every rank updates for itself.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.job.topology import rank
from ring_keras.ops.broadcast import grouped_broadcast
from ring_keras.ops.step import one_step
from ring_keras.optimizers.gradient_values import Gradient
from ring_keras.optimizers.state_division import StateDivision

__all__ = ["ShardedState"]


class ShardedState:
    """Has the ranks divide the updates of one optimizer.

    Args:
        optimizer: The one.
        process_set: The ranks that train together.
        update: Updates some of its variables by their gradients.
        division: Which rank has what.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        process_set: ProcessSet,
        update: Callable[[Sequence[Gradient], Sequence[Any], Any], None],
        division: StateDivision,
    ) -> None:
        self._optimizer = optimizer
        self._process_set = process_set
        self._update_these = update
        self.division = division

    def install(self) -> None:
        """Puts the methods into the optimizer; divides what it has by now."""
        optimizer = self._optimizer
        internals.replace(optimizer, internals.UPDATE, self._update)
        internals.replace(optimizer, internals.APPLY_WEIGHT_DECAY, self._decay)
        internals.replace(optimizer, internals.UPDATE_AVERAGES, self._update_averages)
        internals.replace(optimizer, internals.TAKE_AVERAGES, self._take_averages)
        self.division.begin()

    def _update(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Any],
        learning_rate: Any,
    ) -> None:
        """Of this rank's variables; then all ranks take all of them."""
        self.division.require_same_ranks()
        own = [
            (gradient, variable)
            for gradient, variable in zip(grads, trainable_variables, strict=True)
            if self.division.updates(variable)
        ]
        self._update_these([g for g, _ in own], [v for _, v in own], learning_rate)
        self._share(trainable_variables, "update")

    def _decay(self, variables: Sequence[Any]) -> None:
        type(self._optimizer)._apply_weight_decay(
            self._optimizer, list(filter(self.division.updates, variables))
        )

    def _update_averages(self, trainable_variables: Sequence[Any]) -> None:
        with self._own_averages(trainable_variables) as own:
            type(self._optimizer)._update_model_variables_moving_average(
                self._optimizer, own
            )

    def _take_averages(self, trainable_variables: Sequence[Any]) -> None:
        """Makes the moving averages the variables' values, on all ranks."""
        self.division.require_same_ranks()
        with self._own_averages(trainable_variables) as own:
            type(self._optimizer)._overwrite_model_variables_with_average_value(
                self._optimizer, own
            )
        self._share(
            [variable for variable, _ in self._averaged(trainable_variables)],
            "averages",
        )

    def change_averages(self, change: Callable[[], None]) -> None:
        """Has all ranks take what one of Keras's callbacks makes of the averages.

        Args:
            change: Does it, to the variables of which the optimizer has averages here.
        """
        self.division.require_same_ranks()
        attributes = vars(self._optimizer)
        variables = attributes[internals.TRAINABLE_VARIABLES]
        with self._own_averages(variables) as own:
            attributes[internals.TRAINABLE_VARIABLES] = own
            try:
                change()
            finally:
                attributes[internals.TRAINABLE_VARIABLES] = variables
        self._share([variable for variable, _ in self._averaged(variables)], "averages")

    @contextlib.contextmanager
    def _own_averages(self, variables: Sequence[Any]) -> Iterator[list[Any]]:
        """This rank's of these variables; the optimizer has their averages alone."""
        own = [
            pair
            for pair in self._averaged(variables)
            if self.division.has_state(pair[1])
        ]
        attributes = vars(self._optimizer)
        averages = attributes[internals.AVERAGES]
        attributes[internals.AVERAGES] = [average for _, average in own]
        try:
            yield [variable for variable, _ in own]
        finally:
            attributes[internals.AVERAGES] = averages

    def _averaged(self, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Those of which there are averages, each with its own, as Keras pairs them."""
        averages = internals.private(self._optimizer, internals.AVERAGES)
        pairs = zip(variables, averages, strict=False)
        return [pair for pair in pairs if pair[1] is not None]

    def _share(self, variables: Sequence[Any], what: str) -> None:
        """Has each rank take these variables from those that have updated them."""
        if len(self.division.members()) == 1:
            return
        groups: dict[tuple[int, str], list[Any]] = {}
        for variable in map(internals.tensorflow_variable, variables):
            owner = self.division.owner(variable)
            if owner is not None:
                key = owner, variable.dtype.base_dtype.name
                groups.setdefault(key, []).append(variable)
        with one_step(is_of_training=False):
            for owner, dtype in sorted(groups):
                group = groups[owner, dtype]
                values = grouped_broadcast(
                    group,
                    owner,
                    name=f"optimizer/{what}/{owner}/{dtype}",
                    process_set=self._process_set,
                )
                if owner != rank():
                    for variable, value in zip(group, values, strict=True):
                        variable.assign(value)
