"""How the ranks divide what an optimizer keeps: each has a piece of it.

The optimizer is built for all of its variables, in Keras's order. A rank has an empty
variable in the place of what others have, and a smaller one in the place of what it
has with others, of the name that Keras gives it. So files have the places that they
have without us, and all that counts variables counts as before.

What each rank trains for itself (`local_layers`) is not divided: every rank has the
state of its own.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.job.topology import local_size, rank, size
from ring_keras.ops.shards import Piece, Shard, set_shard, shard_of
from ring_keras.optimizers.buckets import DEFAULT_BYTES
from ring_keras.optimizers.even_pieces import cut_evenly, in_buckets, whole_pieces
from ring_keras.optimizers.parts_of_one_state import (
    content_of,
    first_row,
    note_loaded,
)
from ring_keras.optimizers.shardable import can_cut

__all__ = ["Part", "StateDivision", "dtype_of"]


class Part(NamedTuple):
    """What one rank has of one of the optimizer's variables.

    Attributes:
        variable: Empty on the others, or with their part.
        number: Which variable it is of those that are divided.
        piece: Which elements of it, and the rank.
        shape: With which that rank has them.
    """

    variable: Any
    number: int
    piece: Piece
    shape: tuple[int, ...]


def dtype_of(part: Part) -> np.dtype[Any]:
    """Of its values."""
    found: np.dtype[Any] = np.dtype(tf.as_dtype(part.variable.dtype).as_numpy_dtype)
    return found


class _Place(NamedTuple):
    """What a division follows from, besides the variables.

    Attributes:
        rank: This one; None before there is a division.
        ranks: How many there are.
        bucket_nbytes: In which the variables are divided; None: all together.
    """

    rank: int | None
    ranks: int | None
    bucket_nbytes: int | None

    def __str__(self) -> str:
        how = "" if self.bucket_nbytes is None else f" by {self.bucket_nbytes} bytes"
        return f"{self.rank} of {self.ranks}{how}"


class StateDivision:
    """That of one optimizer that updates variables itself.

    Args:
        optimizer: One that can be sharded.
        process_set: The ranks that train together. One outside of it has all of it.
        is_local: Whether each rank trains a variable for itself.
        bucket_size_bytes: Of the gradients; None: what the job has.
        scatters: Whether ranks of several hosts get the reduced gradients of what they
            update alone.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        process_set: ProcessSet,
        is_local: Callable[[Any], bool],
        *,
        bucket_size_bytes: int | None = None,
        scatters: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self._process_set = process_set
        self._is_local = is_local
        self._bucket_size_bytes = bucket_size_bytes
        self._scatters = scatters
        # By variable, of those that it is built with: who has its state. None: each
        # rank has.
        self._shards: dict[Hashable, Shard | None] = {}
        # Of those that are divided: in which bucket.
        self._buckets: dict[Hashable, int] = {}
        # Decided once: a momentum that changes later does not change on ranks to come.
        self._pieces_of = cut_evenly if can_cut(optimizer) else whole_pieces
        # What Adafactor is about to add.
        self._means: internals.Means | None = None
        # When it was built.
        self._place: _Place | None = None
        self.parts: list[Part] = []
        """What is divided, in the order in which it was built, the same on all ranks.
        Their variables are the same for any number of ranks, too."""

    def begin(self) -> None:
        """Divides what the optimizer has by now."""
        if not self._optimizer.built:
            return
        if not internals.steps_done(self._optimizer):
            self._divide()
            return
        state = internals.optimizer_state(self._optimizer)
        rows = [first_row(internals.tensorflow_variable(one).numpy()) for one in state]
        self._divide()
        state = internals.optimizer_state(self._optimizer)
        note_loaded([self._optimizer], content_of(state, rows))

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
        self._shards = dict.fromkeys(map(internals.variable_key, variables))
        self._buckets = {}
        nbytes = self._place.bucket_nbytes
        # On one host all ranks get all gradients, so no bucket need be even.
        groups = [common] if nbytes is None else in_buckets(common, nbytes)
        for number, group in enumerate(groups):
            for variable, pieces in zip(
                group, self._pieces_of(group, members), strict=True
            ):
                key = internals.variable_key(variable)
                self._shards[key] = Shard(tuple(variable.shape), pieces)
                self._buckets[key] = number
        self._means = internals.expected_means(self._optimizer, variables)
        internals.replace(self._optimizer, internals.ADD_FROM_REFERENCE, self._add)
        internals.replace(self._optimizer, internals.ADD_VARIABLE, self._add_mean)
        try:
            type(self._optimizer).build(self._optimizer, variables)
        finally:
            internals.restore(self._optimizer, internals.ADD_FROM_REFERENCE)
            internals.restore(self._optimizer, internals.ADD_VARIABLE)

    @property
    def is_for_hosts(self) -> bool:
        """Whether each bucket of gradients is divided evenly."""
        return self._place is not None and self._place.bucket_nbytes is not None

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
        shard = None if accumulates else self.shard(reference_variable)
        add = self._adding(shard)
        internals.replace(self._optimizer, internals.ADD_VARIABLE, add)
        try:
            variable = cls.add_variable_from_reference(
                self._optimizer, reference_variable, name, *args, **kwargs
            )
        finally:
            internals.replace(self._optimizer, internals.ADD_VARIABLE, self._add_mean)
        if shard is not None:
            self._mark(variable, shard)
        return variable

    def _add_mean(self, shape: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of the optimizer's, where Keras names no variable."""
        if self._means is None:  # All ranks have it.
            return self._adding(None)(shape, *args, **kwargs)
        shard = self.shard(internals.next_mean(self._means, shape))
        if shard is not None:  # Whose variable is not cut.
            (piece,) = shard.pieces
            whole = Piece(piece.owner, 0, math.prod(shape))
            shard = Shard(tuple(shape), (whole,))
        variable = self._adding(shard)(shape, *args, **kwargs)
        if shard is not None:
            self._mark(variable, shard)
        return variable

    def _adding(self, shard: Shard | None) -> Callable[..., Any]:
        """The optimizer's method, for what this rank has of a variable."""
        cls = type(self._optimizer)

        def add(shape: Any, *args: Any, **kwargs: Any) -> Any:
            if shard is not None:
                piece = shard.piece_of(rank())
                shape = (0,) if piece is None else shard.shape_of(piece)
            return cls.add_variable(self._optimizer, shape, *args, **kwargs)

        return add

    def _mark(self, variable: Any, shard: Shard) -> None:
        """Says of what is kept for another variable who has it."""
        number = 1 + max((part.number for part in self.parts), default=-1)
        self.parts += [
            Part(variable, number, piece, shard.shape_of(piece))
            for piece in shard.pieces
        ]
        if len(self.members()) > 1:
            set_shard(variable, shard)
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
        return self._place is not None and part.piece.owner == self._place.rank

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
        place = None if self._place is None else self._place.rank
        before = internals.forget_state(optimizer)
        self.build(variables)
        optimizer.built = True
        for (_, name), old in unfiled.items():
            internals.untrack_state(optimizer, name).assign(old)
        if has_untracked:
            internals.untrack_placeholders(optimizer)
        for old, new in zip(before, internals.optimizer_state(optimizer), strict=True):
            _keep(old, place, new)

    def shard(self, variable: Any) -> Shard | None:
        """Who updates what of a variable of the model; None: each rank all of it."""
        return self._shards[internals.variable_key(variable)]

    def bucket(self, variable: Any) -> int:
        """In which a divided one is; 0 has those whose gradients come first."""
        return self._buckets[internals.variable_key(variable)]

    def updates(self, variable: Any) -> bool:
        """Whether this rank does that, to all of it."""
        shard = self.shard(variable)
        return shard is None or (
            not shard.is_cut and shard.piece_of(rank()) is not None
        )

    def cut(self, variable: Any) -> tuple[Shard, Piece] | None:
        """Its pieces, and this rank's, if several ranks update some of it."""
        shard = self.shard(variable)
        piece = None if shard is None else shard.piece_of(rank())
        if shard is None or piece is None or not shard.is_cut:
            return None
        return shard, piece

    def members(self) -> list[int]:
        """The ranks that divide it."""
        if self._process_set.included():
            return self._process_set.ranks
        return [rank()]

    def _current_place(self) -> "_Place":
        nbytes = None
        if (
            self._scatters
            and self._pieces_of is cut_evenly
            and local_size() < size()
            and len(self.members()) > 1
        ):
            # Not what was tuned, which may change.
            nbytes = (
                self._bucket_size_bytes
                or current_job().config.bucket_size_bytes
                or DEFAULT_BYTES
            )
        return _Place(rank(), len(self.members()), nbytes)

    def require_same_ranks(self) -> None:
        """Raises if it was divided for other ranks than there are.

        Raises:
            RingKerasError: On all ranks alike.
        """
        place = self._current_place()
        if self._place != place:
            was = self._place or _Place(None, None, None)
            raise RingKerasError(
                "[RK339] "
                f"the state of optimizer '{self._optimizer.name}' was divided for rank "
                f"{was}, and this is rank {place} now. "
                "Save the model before the job ends, load it in the new one, and pass "
                "its optimizer to ring_keras.DistributedOptimizer(shard_state=True)."
            )


def _keep(old: Any, place: int | None, new: Any) -> None:
    """Has a variable of a state have what this rank had of it.

    Args:
        old: What it had.
        place: The rank that it was then; None: it had all.
        new: What it has now.
    """
    before, now = shard_of(old), shard_of(new)
    shard = now or before
    if shard is None:
        new.assign(old)
        return
    whole = Piece(rank(), 0, math.prod(shard.shape))
    theirs = whole if before is None or place is None else before.piece_of(place)
    ours = whole if now is None else now.piece_of(rank())
    if theirs is None or ours is None:
        return
    begin, end = max(theirs.begin, ours.begin), min(theirs.end, ours.end)
    if begin >= end:
        return
    values = np.array(internals.tensorflow_variable(new).numpy())
    given = internals.tensorflow_variable(old).numpy().reshape(-1)
    values.reshape(-1)[begin - ours.begin : end - ours.begin] = given[
        begin - theirs.begin : end - theirs.begin
    ]
    new.assign(values)
