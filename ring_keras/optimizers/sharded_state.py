"""An optimizer whose state is divided: each variable is updated by one rank.

All ranks have all gradients, reduced and clipped. One rank has what the optimizer keeps
for a variable, and updates it; then the others take the variable from that rank. So
each update is computed by Keras's own methods, from the same numbers, and all ranks
have the same bits.

The optimizer is built for all of its variables, in Keras's order. What another rank has
is an empty variable, at the place and of the name that Keras gives it. So files have
the places that they have without us, and all that counts variables counts as before.

What each rank trains for itself (`local_layers`) is not divided: every rank has the
state of its own, and updates it.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError, RingKerasError
from ring_keras.job.process_set import ProcessSet
from ring_keras.job.topology import rank
from ring_keras.ops.broadcast import grouped_broadcast
from ring_keras.ops.shards import Shard, set_shard, shard_of
from ring_keras.ops.step import one_step
from ring_keras.optimizers.gradient_values import Gradient
from ring_keras.values.objects import allgather_object

__all__ = [
    "SHARDABLE",
    "Part",
    "ShardedState",
    "balanced",
    "can_shard",
    "can_shard_inside",
    "parts_of_different_states",
    "require_parts_of_one_state",
    "sharded_steps",
]

SHARDABLE: Final = (
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "Muon",
    "Nadam",
    "RMSprop",
    "SGD",
)
"""Optimizers of Keras whose state of a variable is made from that variable, and used in
its update alone. Of a subclass there is no telling."""


def can_shard(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether its state can be divided."""
    return any(
        type(optimizer) is getattr(keras.optimizers, name, None) for name in SHARDABLE
    )


def can_shard_inside(wrapper: keras.optimizers.Optimizer) -> bool:
    """Whether the states of those can be divided to which it hands its gradients."""
    if isinstance(wrapper, keras.optimizers.LossScaleOptimizer):
        return True
    # Older Keras has no such class.
    return type(wrapper) is getattr(keras.optimizers, "MultiOptimizer", None)


class Part(NamedTuple):
    """A variable that one rank has, and updates, for all.

    Attributes:
        variable: Empty on the others.
        owner: The rank that has it.
        shape: There.
    """

    variable: Any
    owner: int
    shape: tuple[int, ...]


class ShardedState:
    """The state of one optimizer that updates variables itself.

    Args:
        optimizer: One that can be sharded.
        process_set: The ranks that train together. One outside of it has all of it.
        update: Updates some of its variables by their gradients.
        is_local: Whether each rank trains a variable for itself.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        process_set: ProcessSet,
        update: Callable[[Sequence[Gradient], Sequence[Any], Any], None],
        is_local: Callable[[Any], bool],
    ) -> None:
        self._optimizer = optimizer
        self._process_set = process_set
        self._update_these = update
        self._is_local = is_local
        # By variable, of those that it is built with: the rank. None: each rank is.
        self._owners: dict[Hashable, int | None] = {}
        # What Adafactor is about to add.
        self._means: internals.Means | None = None
        # This rank and the number of ranks, when it was built.
        self._place: tuple[int, int] | None = None
        self.parts: list[Part] = []
        """What is divided, in the order in which it was built: the same on all ranks,
        and for any number of them."""

    def install(self) -> None:
        """Puts the methods into the optimizer; divides what it has by now."""
        optimizer = self._optimizer
        internals.replace(optimizer, internals.UPDATE, self._update)
        internals.replace(optimizer, internals.APPLY_WEIGHT_DECAY, self._decay)
        internals.replace(optimizer, internals.UPDATE_AVERAGES, self._update_averages)
        internals.replace(optimizer, internals.TAKE_AVERAGES, self._take_averages)
        if optimizer.built:
            self._divide()

    def build(self, variables: Sequence[Any]) -> None:
        """Makes this rank's part of the state, and empty variables for the rest."""
        if self._optimizer.built:  # Keras's own do nothing then.
            type(self._optimizer).build(self._optimizer, variables)
            return
        variables = list(variables)
        self._place = self._current_place()
        self.parts = []
        # By what the ranks have in common.
        common = [v for v in variables if not self._is_local(v)]
        members = self._members()
        places = balanced(list(map(_nbytes, common)), len(members))
        self._owners = dict.fromkeys(map(internals.variable_key, variables))
        for variable, place in zip(common, places, strict=True):
            self._owners[internals.variable_key(variable)] = members[place]
        self._means = internals.expected_means(self._optimizer, variables)
        internals.replace(self._optimizer, internals.ADD_FROM_REFERENCE, self._add)
        internals.replace(self._optimizer, internals.ADD_VARIABLE, self._add_mean)
        try:
            type(self._optimizer).build(self._optimizer, variables)
        finally:
            internals.restore(self._optimizer, internals.ADD_FROM_REFERENCE)
            internals.restore(self._optimizer, internals.ADD_VARIABLE)

    def _add(
        self,
        reference_variable: Any,
        name: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """In place of the optimizer's, while it is built."""
        cls = type(self._optimizer)
        # What accumulates has each rank's own gradients, until they are reduced.
        accumulates = name == internals.GRADIENT_ACCUMULATOR
        add: Callable[..., Any] = functools.partial(cls.add_variable, self._optimizer)
        if not self._updates(reference_variable) and not accumulates:
            add = self._add_empty
        internals.replace(self._optimizer, internals.ADD_VARIABLE, add)
        try:
            variable = cls.add_variable_from_reference(
                self._optimizer, reference_variable, name, *args, **kwargs
            )
        finally:
            internals.replace(self._optimizer, internals.ADD_VARIABLE, self._add_mean)
        if not accumulates:
            self._mark(variable, reference_variable, reference_variable.shape)
        return variable

    def _add_mean(self, shape: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of the optimizer's, where Keras names no variable."""
        add: Callable[..., Any] = functools.partial(
            type(self._optimizer).add_variable, self._optimizer
        )
        if self._means is None:  # All ranks have it.
            return add(shape, *args, **kwargs)
        reference = internals.next_mean(self._means, shape)
        if not self._updates(reference):
            add = self._add_empty
        variable = add(shape, *args, **kwargs)
        self._mark(variable, reference, shape)
        return variable

    def _add_empty(self, shape: Any, *args: Any, **kwargs: Any) -> Any:
        return type(self._optimizer).add_variable(
            self._optimizer, (0,), *args, **kwargs
        )

    def _mark(self, variable: Any, reference: Any, shape: Sequence[int]) -> None:
        """Says of what is kept for another variable who has it, if one rank does."""
        owner = self._owner(reference)
        if owner is None:
            return
        self.parts.append(Part(variable, owner, tuple(shape)))
        if len(self._members()) > 1:
            set_shard(variable, Shard(owner, tuple(shape)))
            internals.replace(
                variable, internals.SERIALIZE_TO_TENSORS, self._refuse_checkpoint
            )

    def _refuse_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Where TensorFlow saves or restores the variables of this rank."""
        raise ValueError(
            "[RK336] "
            "tf.train.Checkpoint does not work with an optimizer with "
            "shard_state=True, for now: each rank has a part of the state. Save by "
            "model.save() or model.save_weights() on all ranks. Received: optimizer "
            f"'{self._optimizer.name}'"
        )

    def has(self, part: Part) -> bool:
        """Whether this rank has it, by the number that it had when it was built."""
        return self._place is not None and part.owner == self._place[0]

    def follow_ranks(self) -> bool:
        """Builds it for the ranks that there are now; returns whether it had to.

        This rank keeps what it has and is to have. The rest of its part is as new.
        """
        if not self._optimizer.built or self._place == self._current_place():
            return False
        self._divide()
        return True

    def _divide(self) -> None:
        """Builds it once more, and keeps this rank's part of what it had."""
        optimizer = self._optimizer
        variables = list(internals.trainable_variables(optimizer))
        unfiled = internals.unfiled_state([optimizer])
        has_untracked = bool(internals.untracked_placeholders(optimizer))
        before = internals.forget_state(optimizer)
        self.build(variables)
        optimizer.built = True
        for (_, name), old in unfiled.items():
            internals.untrack_state(optimizer, name).assign(old)
        if has_untracked:
            internals.untrack_placeholders(optimizer)
        for old, new in zip(before, internals.optimizer_state(optimizer), strict=True):
            if self._has(new) and old.shape == new.shape:
                new.assign(old)

    def _update(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Any],
        learning_rate: Any,
    ) -> None:
        """Of this rank's variables; then all ranks take all of them."""
        self.require_same_ranks()
        own = [
            (gradient, variable)
            for gradient, variable in zip(grads, trainable_variables, strict=True)
            if self._updates(variable)
        ]
        self._update_these([g for g, _ in own], [v for _, v in own], learning_rate)
        self._share(trainable_variables, "update")

    def _decay(self, variables: Sequence[Any]) -> None:
        type(self._optimizer)._apply_weight_decay(
            self._optimizer, list(filter(self._updates, variables))
        )

    def _update_averages(self, trainable_variables: Sequence[Any]) -> None:
        with self._own_averages(trainable_variables) as own:
            type(self._optimizer)._update_model_variables_moving_average(
                self._optimizer, own
            )

    def _take_averages(self, trainable_variables: Sequence[Any]) -> None:
        """Makes the moving averages the variables' values, on all ranks."""
        self.require_same_ranks()
        with self._own_averages(trainable_variables) as own:
            type(self._optimizer)._overwrite_model_variables_with_average_value(
                self._optimizer, own
            )
        self._share(
            [variable for variable, _ in self._averaged(trainable_variables)],
            "averages",
        )

    @contextlib.contextmanager
    def change_averages(self, change: Callable[[], None]) -> None:
        """Has all ranks take what one of Keras's callbacks makes of the averages.

        Args:
            change: Does it, to the variables of which the optimizer has averages here.
        """
        self.require_same_ranks()
        attributes = vars(self._optimizer)
        variables = attributes[internals.TRAINABLE_VARIABLES]
        with self._own_averages(variables) as own:
            attributes[internals.TRAINABLE_VARIABLES] = own
            try:
                change()
            finally:
                attributes[internals.TRAINABLE_VARIABLES] = variables
        self._share([variable for variable, _ in self._averaged(variables)], "averages")

    def _own_averages(self, variables: Sequence[Any]) -> Iterator[list[Any]]:
        """This rank's of these variables; the optimizer has their averages alone."""
        own = [pair for pair in self._averaged(variables) if self._has(pair[1])]
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
        if len(self._members()) == 1:
            return
        groups: dict[tuple[int, str], list[Any]] = {}
        for variable in map(internals.tensorflow_variable, variables):
            owner = self._owner(variable)
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

    def _owner(self, variable: Any) -> int | None:
        return self._owners[internals.variable_key(variable)]

    def _updates(self, variable: Any) -> bool:
        """Whether this rank does."""
        return self._owner(variable) in (None, rank())

    def _has(self, variable: Any) -> bool:
        shard = shard_of(variable)
        return shard is None or shard.owner == rank()

    def _members(self) -> list[int]:
        """The ranks that divide it."""
        if self._process_set.included():
            return self._process_set.ranks
        return [rank()]

    def _current_place(self) -> tuple[int, int]:
        return rank(), len(self._members())

    def require_same_ranks(self) -> None:
        """Raises if it was divided for other ranks than there are.

        Raises:
            RingKerasError: On all ranks alike.
        """
        place = self._current_place()
        if self._place != place:
            was = self._place or (None, None)
            raise RingKerasError(
                "[RK339] "
                f"the state of optimizer '{self._optimizer.name}' was divided for rank "
                f"{was[0]} of {was[1]}, and this is rank {place[0]} of {place[1]} now. "
                "Save the model before the job ends, load it in the new one, and pass "
                "its optimizer to ring_keras.DistributedOptimizer(shard_state=True)."
            )


def sharded_steps(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[int]:
    """How many steps those have taken of these whose state is divided."""
    return [
        internals.steps_done(optimizer)
        for optimizer in internals.innermost(optimizers)
        if optimizer.built and any(map(shard_of, optimizer.variables))
    ]


def require_parts_of_one_state(
    own: list[int], name: str, process_set: ProcessSet
) -> None:
    """Raises where the ranks have taken different numbers of steps; collective.

    One that has loaded a file alone has its part of that, and the others have theirs of
    something else.

    Args:
        own: See `sharded_steps`.
        name: Of what the ranks are about to do.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank.
    """
    everyones = allgather_object(own, name=f"optimizer/{name}", process_set=process_set)
    for other, theirs in zip(process_set.ranks, everyones, strict=True):
        if theirs != everyones[0]:
            raise parts_of_different_states(
                f"rank {process_set.ranks[0]} has taken {everyones[0][0]} steps, "
                f"rank {other} {theirs[0]}"
            )


def parts_of_different_states(how: str) -> RankMismatchError:
    """The error of ranks whose parts do not belong together."""
    return RankMismatchError(
        "[RK348] "
        "the ranks have parts of different states of an optimizer with "
        f"shard_state=True: {how}. Load the same file on every rank, before the first "
        "step, and save on all ranks after the same step."
    )


def balanced(sizes: Sequence[int], places: int) -> list[int]:
    """Divides things, so that each place has about as much: the largest ones first."""
    loads = [0] * places
    result = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        place = loads.index(min(loads))
        result[index] = place
        loads[place] += sizes[index]
    return result


def _nbytes(variable: Any) -> int:
    dtype = tf.as_dtype(variable.dtype)
    return int(math.prod(variable.shape) * dtype.size)
