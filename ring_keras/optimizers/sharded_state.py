"""The updates of an optimizer whose state is divided: each element's by one rank.

A rank updates the variables, and the pieces of variables, of which it has what the
optimizer keeps, and has at least the gradients of these, reduced and clipped. Then the
others take them from that rank. So each update is computed by Keras's own methods, from
the same numbers, and all ranks have the same bits.

What each rank trains for itself (`local_layers`) every rank updates for itself.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.shards import Shard
from ring_keras.ops.share_variables import share_variables
from ring_keras.optimizers.fused_update import FusedUpdate, PieceInPlace
from ring_keras.optimizers.gradient_values import Gradient
from ring_keras.optimizers.scattered_bucket import OwnPart
from ring_keras.optimizers.slices import Slice, Slices, taken
from ring_keras.optimizers.state_division import StateDivision

__all__ = ["ShardedState"]

# At a time, or of one variable: some buckets of gradients.
_SENT_BYTES: Final = 64 << 20

# A dtype, a bucket, and which of the parts of that.
_Group: TypeAlias = tuple[str, int, int]


class ShardedState:
    """Has the ranks divide the updates of one optimizer.

    Args:
        optimizer: The one.
        process_set: The ranks that train together.
        fused: Updates some of its variables by their gradients.
        division: Which rank has what.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        process_set: ProcessSet,
        fused: FusedUpdate,
        division: StateDivision,
    ) -> None:
        self._optimizer = optimizer
        self._process_set = process_set
        self._fused = fused
        self.division = division
        self._slices = Slices(optimizer)
        # Of which they are: another list each time that the state is divided.
        self._parts = division.parts

    def install(self) -> None:
        """Puts the methods into the optimizer; divides what it has by now."""
        optimizer = self._optimizer
        internals.replace(optimizer, internals.UPDATE, self._update)
        internals.replace(optimizer, internals.APPLY_WEIGHT_DECAY, self._decay)
        internals.replace(optimizer, internals.UPDATE_AVERAGES, self._update_averages)
        internals.replace(optimizer, internals.TAKE_AVERAGES, self._take_averages)
        self._slices.install()
        self.division.begin()

    def _update(
        self,
        grads: Sequence[Gradient | OwnPart],
        trainable_variables: Sequence[Any],
        learning_rate: Any,
    ) -> None:
        """Of what this rank has; then all ranks take all of it."""
        self.division.require_same_ranks()
        own = [
            (gradient.values if isinstance(gradient, OwnPart) else gradient, variable)
            for gradient, variable in zip(grads, trainable_variables, strict=True)
            if self.division.updates(variable)
        ]
        parts = []
        goes_apart = set()
        # One that is given twice is updated twice, in one place.
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            cut = self.division.cut(variable)
            if cut is None:
                continue
            shard, piece = cut
            if isinstance(gradient, OwnPart):
                part = gradient.values
            else:
                part = taken(gradient, shard, piece)
            in_place = PieceInPlace(variable, piece.begin)
            parts.append((part, variable, in_place))
            decays = self._optimizer.weight_decay is not None
            if decays or not self._fused.takes_piece(part, in_place, learning_rate):
                goes_apart.add(internals.variable_key(variable))
        apart = []
        for part, variable, in_place in parts:
            if internals.variable_key(variable) in goes_apart:
                apart.append((part, variable))
            else:
                own.append((part, in_place))
        slices = self._load([variable for _, variable in apart])
        # Of the others Keras has asked for it before.
        type(self._optimizer)._apply_weight_decay(
            self._optimizer, [one.variable for one in slices]
        )
        own += [
            (part, one.variable) for (part, _), one in zip(apart, slices, strict=True)
        ]
        self._fused.update([g for g, _ in own], [v for _, v in own], learning_rate)
        self._share(trainable_variables, slices, "update")

    def _load(self, variables: Sequence[Any]) -> list[Slice]:
        """This rank's pieces of those of these that several ranks update."""
        if self._parts is not self.division.parts:
            self._slices.forget()
            self._parts = self.division.parts
        cuts = [(variable, self.division.cut(variable)) for variable in variables]
        return [self._slices.load(variable, *cut) for variable, cut in cuts if cut]

    def _decay(self, variables: Sequence[Any]) -> None:
        type(self._optimizer)._apply_weight_decay(
            self._optimizer, list(filter(self.division.updates, variables))
        )

    def _update_averages(self, trainable_variables: Sequence[Any]) -> None:
        with self._own_averages(trainable_variables) as (own, _):
            type(self._optimizer)._update_model_variables_moving_average(
                self._optimizer, own
            )

    def _take_averages(self, trainable_variables: Sequence[Any]) -> None:
        """Makes the moving averages the variables' values, on all ranks."""
        self.division.require_same_ranks()
        with self._own_averages(trainable_variables) as (own, slices):
            type(self._optimizer)._overwrite_model_variables_with_average_value(
                self._optimizer, own
            )
        averaged = [variable for variable, _ in self._averaged(trainable_variables)]
        self._share(averaged, slices, "averages")

    def change_averages(self, change: Callable[[], None]) -> None:
        """Has all ranks take what one of Keras's callbacks makes of the averages.

        Args:
            change: Does it, to the variables of which the optimizer has averages here.
        """
        self.division.require_same_ranks()
        attributes = vars(self._optimizer)
        variables = attributes[internals.TRAINABLE_VARIABLES]
        with self._own_averages(variables) as (own, slices):
            attributes[internals.TRAINABLE_VARIABLES] = own
            try:
                change()
            finally:
                attributes[internals.TRAINABLE_VARIABLES] = variables
        averaged = [variable for variable, _ in self._averaged(variables)]
        self._share(averaged, slices, "averages")

    @contextlib.contextmanager
    def _own_averages(
        self, variables: Sequence[Any]
    ) -> Iterator[tuple[list[Any], list[Slice]]]:
        """This rank's of these variables; the optimizer has their averages alone.

        Yields:
            Variables, and slices of others; and these slices again.
        """
        averages = {
            internals.variable_key(variable): average
            for variable, average in self._averaged(variables)
        }
        averaged = [variable for variable, _ in self._averaged(variables)]
        slices = self._load(averaged)
        own = list(filter(self.division.updates, averaged))
        wholes = [*own, *(one.whole for one in slices)]
        attributes = vars(self._optimizer)
        before = attributes[internals.AVERAGES]
        attributes[internals.AVERAGES] = [
            averages[internals.variable_key(variable)] for variable in wholes
        ]
        try:
            yield [*own, *(one.variable for one in slices)], slices
        finally:
            attributes[internals.AVERAGES] = before

    def _averaged(self, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Those of which there are averages, each with its own.

        Keras goes by their order, and `fit` ends with those that are not frozen.
        """
        averages = dict(
            zip(
                map(
                    internals.variable_key,
                    internals.trainable_variables(self._optimizer),
                ),
                internals.private(self._optimizer, internals.AVERAGES),
                strict=True,
            )
        )
        pairs = [(v, averages.get(internals.variable_key(v))) for v in variables]
        return [pair for pair in pairs if pair[1] is not None]

    def _share(
        self, variables: Sequence[Any], slices: Sequence[Slice], what: str
    ) -> None:
        """Has each rank take these variables from those that have updated them.

        Args:
            variables: Of the model.
            slices: This rank's new pieces of them.
            what: Was done.
        """
        if len(self.division.members()) == 1:
            return
        apart = {internals.variable_key(one.whole): one.variable for one in slices}
        for key, group in sorted(self._groups(variables).items()):
            share_variables(
                [variable for variable, _ in group],
                [shard for _, shard in group],
                apart,
                name="/".join(map(str, ("optimizer", what, *key))),
                process_set=self._process_set,
                in_place=self._fused.wanted,
            )

    def _groups(
        self, variables: Sequence[Any]
    ) -> dict[_Group, list[tuple[tf.Variable, Shard]]]:
        """What is sent at once.

        Of some variables at a time: under XLA, and on GPUs, what comes is there twice
        until it is assigned. Between hosts a bucket is: the one whose gradients come
        first is updated first, and travels while others are.
        """
        groups: dict[_Group, list[tuple[tf.Variable, Shard]]] = {}
        nbytes: dict[tuple[str, int], int] = {}
        for variable in map(internals.tensorflow_variable, variables):
            shard = self.division.shard(variable)
            if shard is None:
                continue
            dtype = variable.dtype.base_dtype
            bucket = (dtype.name, self.division.bucket(variable))
            before = nbytes.get(bucket, 0)
            nbytes[bucket] = before + math.prod(shard.shape) * dtype.size
            group = groups.setdefault((*bucket, before // _SENT_BYTES), [])
            group.append((variable, shard))
        return groups
