"""How the ranks divide what an optimizer keeps: each variable's state is one rank's.

The optimizer is built for all of its variables, in Keras's order. What another rank has
is an empty variable, at the place and of the name that Keras gives it. So files have
the places that they have without us, and all that counts variables counts as before.

What each rank trains for itself (`local_layers`) is not divided: every rank has the
state of its own.
"""

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet
from ring_keras.job.topology import rank
from ring_keras.ops.shards import Shard, set_shard, shard_of

__all__ = ["Part", "StateDivision", "balanced"]


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


class StateDivision:
    """That of one optimizer that updates variables itself.

    Args:
        optimizer: One that can be sharded.
        process_set: The ranks that train together. One outside of it has all of it.
        is_local: Whether each rank trains a variable for itself.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        process_set: ProcessSet,
        is_local: Callable[[Any], bool],
    ) -> None:
        self._optimizer = optimizer
        self._process_set = process_set
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

    def begin(self) -> None:
        """Divides what the optimizer has by now."""
        if self._optimizer.built:
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
        members = self.members()
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
        if not self.updates(reference_variable) and not accumulates:
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
        if not self.updates(reference):
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
        owner = self.owner(reference)
        if owner is None:
            return
        self.parts.append(Part(variable, owner, tuple(shape)))
        if len(self.members()) > 1:
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
            if self.has_state(new) and old.shape == new.shape:
                new.assign(old)

    def owner(self, variable: Any) -> int | None:
        """The rank that updates a variable of the model; None: each does."""
        return self._owners[internals.variable_key(variable)]

    def updates(self, variable: Any) -> bool:
        """Whether this rank does that."""
        return self.owner(variable) in (None, rank())

    def has_state(self, variable: Any) -> bool:
        """Whether one of the optimizer's is not another rank's."""
        shard = shard_of(variable)
        return shard is None or shard.owner == rank()

    def members(self) -> list[int]:
        """The ranks that divide it."""
        if self._process_set.included():
            return self._process_set.ranks
        return [rank()]

    def _current_place(self) -> tuple[int, int]:
        return rank(), len(self.members())

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
