"""Files of an optimizer whose state is divided have the state of all ranks.

All ranks save together, as each has a part; each loads its own part of a file.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.errors import CollectiveTimeoutError, PeerLostError, RingKerasError
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.broadcast import broadcast
from ring_keras.ops.shards import shard_of
from ring_keras.optimizers.parts_of_one_state import (
    content_of,
    first_row,
    loaded_content,
    note_loaded,
    parts_of_different_states,
    require_parts_of_one_state,
)
from ring_keras.values.objects import allgather_object
from ring_keras.values.outcomes import gather_outcomes
from ring_keras.values.reduce_op import ReduceOp

__all__ = [
    "ShardedFiles",
    "failed_save_told",
    "give_loaded",
    "loading_for_all",
    "one_rank_alone",
]


class ShardedFiles:
    """Has an optimizer save the state of all ranks, and load this rank's part.

    Args:
        optimizer: One with a sharded state, or one around it.
        process_set: The ranks that train together.
    """

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, process_set: ProcessSet
    ) -> None:
        self._optimizer = optimizer
        self._process_set = process_set
        # Where what was loaded last is kept, if it is to be given to other ranks.
        self._kept: Callable[[], _Kept | None] = lambda: None

    def install(self) -> None:
        """Puts the methods into the optimizer."""
        internals.replace(self._optimizer, internals.SAVE_VARIABLES, self._save)
        internals.replace(self._optimizer, internals.LOAD_VARIABLES, self._load)

    def _save(self, store: Any) -> None:
        """Collective; one variable after the other, so that no rank holds all twice."""
        variables = self._optimizer.variables
        if not any(map(shard_of, variables)):  # One rank, or nothing to divide.
            type(self._optimizer).save_own_variables(self._optimizer, store)
            return
        _refuse_alone(self._optimizer)
        with _explained_if_others_stay_away(self._optimizer):
            _meet_to_save(self._process_set)
            require_parts_of_one_state([self._optimizer], "save", self._process_set)

        def write() -> tuple[None, None]:
            failure: Exception | None = None
            for index, variable in enumerate(variables):
                value = self._whole(variable, index)
                try:
                    if failure is None:
                        store[str(index)] = value
                except Exception as error:  # The others wait for this rank's parts.
                    failure = error
            if failure is not None:
                raise failure
            return None, None

        gather_outcomes("DistributedOptimizer(shard_state)", write, self._process_set)

    def _whole(self, variable: Any, index: int) -> Any:
        shard = shard_of(variable)
        if shard is None:
            return variable.numpy()
        rank = self._process_set.ranks[self._process_set.rank()]
        dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
        values = []
        for place, piece in enumerate(shard.pieces):
            is_own = piece.owner == rank
            empty = np.zeros(() if is_own else shard.shape_of(piece), dtype)
            value = broadcast(
                variable.numpy() if is_own else empty,
                piece.owner,
                name=f"optimizer/save/{index}/{place}",
                process_set=self._process_set,
            )
            values.append(value.numpy())
        if not shard.is_cut:
            return values[0]
        return np.concatenate([v.reshape(-1) for v in values]).reshape(shard.shape)

    def _load(self, store: Any) -> None:
        """This rank's part of a whole state."""
        variables = self._optimizer.variables
        # Of another number of variables Keras warns, and loads none.
        is_whole = not any(map(shard_of, variables))
        if is_whole or len(store.keys()) != len(variables):
            type(self._optimizer).load_own_variables(self._optimizer, store)
            return
        for index, variable in enumerate(variables):
            _require_shape(variable, store[str(index)])  # Also of what others have.
        rank = self._process_set.ranks[self._process_set.rank()]
        for index, variable in enumerate(variables):
            _assign_own(variable, store[str(index)], rank)
        values = [store[str(index)] for index in range(len(variables))]
        content = 0  # Before the first step nothing is in what ranks divide.
        if internals.steps_done(self._optimizer):
            content = content_of(variables, map(first_row, values))
        note_loaded([self._optimizer], content)
        # What was loaded before is gone: no other rank is to get it.
        earlier = self._kept()
        if earlier is not None:
            earlier.pop(id(self._optimizer), None)
        if _loading.kept is not None:
            _loading.kept[id(self._optimizer)] = list(map(np.array, values))
            self._kept = weakref.ref(_loading.kept)


class _Kept(dict[int, list[Any]]):
    """By the `id` of an optimizer: what its variables have in a file."""


class _Loading(threading.local):
    kept: _Kept | None = None


_loading = _Loading()


@contextlib.contextmanager
def loading_for_all() -> Iterator[dict[int, list[Any]]]:
    """Keeps what is loaded in it, as one rank loads what all are to have.

    Yields:
        By the `id` of an optimizer: what the file has for its variables, until that
        optimizer loads another file.
    """
    before, _loading.kept = _loading.kept, _Kept()
    try:
        yield _loading.kept
    finally:
        _loading.kept = before


def give_loaded(
    optimizers: Iterable[keras.optimizers.Optimizer],
    loaded: Mapping[int, Sequence[Any]],
    root_rank: int,
    process_set: ProcessSet,
) -> None:
    """Gives each rank its part of what one of them has loaded; collective.

    Args:
        optimizers: All that a model has, in the same order on all ranks.
        loaded: On the root, as `loading_for_all` has kept it.
        root_rank: The one that has loaded.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank, if they have other optimizers than the root.
    """
    known = list(internals.with_inner(optimizers))
    # By place: how many variables it has here, and in what this rank has loaded.
    own = [
        [len(one.variables), len(loaded.get(id(one), ())), loaded_content(one)]
        for one in known
    ]
    everyones = allgather_object(own, name="optimizer/loaded", process_set=process_set)
    its = everyones[process_set.position_of(root_rank)]
    for other, theirs in zip(process_set.ranks, everyones, strict=True):
        counts, its_counts = ([count for count, *_ in one] for one in (theirs, its))
        if any(count for _, count, _ in its) and counts != its_counts:
            raise parts_of_different_states(
                f"rank {root_rank} has restored optimizers of {its_counts} variables, "
                f"and those of rank {other} have {counts}"
            )
    rank = process_set.ranks[process_set.rank()]
    for place, optimizer in enumerate(known):
        if not its[place][1]:
            continue
        values = loaded.get(id(optimizer))
        for index, variable in enumerate(optimizer.variables):
            shard = shard_of(variable)
            shape = tuple(variable.shape) if shard is None else shard.shape
            dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
            value = np.zeros(shape, dtype) if values is None else values[index]
            given = broadcast(
                np.asarray(value, dtype).reshape(shape),
                root_rank,
                name=f"optimizer/loaded/{place}/{index}",
                process_set=process_set,
            )
            _assign_own(variable, given, rank)
        note_loaded([optimizer], its[place][2])


def _require_shape(variable: Any, value: Any) -> None:
    shard = shard_of(variable)
    shape = tuple(variable.shape) if shard is None else shard.shape
    if tuple(np.shape(value)) != shape:
        raise ValueError(
            "[RK834] "
            f"'{getattr(variable, 'path', variable.name)}' of an optimizer with "
            f"shard_state=True is of shape {shape}, and what is loaded is of shape "
            f"{tuple(np.shape(value))}. Load the file into the model that it is of."
        )


def _assign_own(variable: Any, value: Any, rank: int) -> None:
    """Gives a variable what it has on this rank of the value of the whole."""
    shard = shard_of(variable)
    piece = None if shard is None else shard.piece_of(rank)
    if shard is None:
        variable.assign(value)
    elif piece is not None:
        variable.assign(shard.cut(np.asarray(value), piece))


class _Save(threading.local):
    has_met = False


_save = _Save()


def _meet_to_save(
    process_set: ProcessSet, failure: BaseException | None = None
) -> None:
    """Raises on every rank if one has failed on its way here; collective."""
    _save.has_met = True
    _native.allreduce(
        np.zeros(1, np.int32),
        op=ReduceOp.MAX.value,
        name="optimizer/saves",
        communicator_id=process_set.communicator_id(),
        # A rank that fails elsewhere in its `fit` has the others leave this.
        precedes_step=True,
    )

    def look() -> tuple[None, None]:
        if failure is not None:
            raise failure
        return None, None

    gather_outcomes("DistributedOptimizer(shard_state)", look, process_set)


@contextlib.contextmanager
def failed_save_told(
    process_set: ProcessSet, note_told: Callable[[BaseException], None]
) -> Iterator[None]:
    """Around a save by all ranks: who cannot write tells those that wait for it.

    Args:
        process_set: The ranks.
        note_told: Called with the error of which they have been told.
    """
    before, _save.has_met = _save.has_met, False
    try:
        yield
    except Exception as error:
        if not _save.has_met and not _alone.what:
            with contextlib.suppress(RingKerasError):  # They know.
                _meet_to_save(process_set, error)
            note_told(error)
        raise
    finally:
        _save.has_met |= before


class _Alone(threading.local):
    what = ""


_alone = _Alone()


@contextlib.contextmanager
def one_rank_alone(what: str) -> Iterator[None]:
    """What is done inside, the other ranks do not do.

    Args:
        what: It is that runs on one rank, for messages.
    """
    before, _alone.what = _alone.what, what
    try:
        yield
    finally:
        _alone.what = before


def _refuse_alone(optimizer: keras.optimizers.Optimizer) -> None:
    if _alone.what:
        raise ValueError(  # Of this rank's own; `fit` tells the others of it.
            "[RK338] "
            f"the state of optimizer '{optimizer.name}' is divided among the ranks "
            f"(shard_state=True), and {_alone.what} saves on one rank alone, which has "
            "a part of it. Save on all ranks, to the same path or each to its own, by "
            "model.save(path) outside of RootOnly, or by a keras.callbacks."
            "ModelCheckpoint on every rank."
        )


@contextlib.contextmanager
def _explained_if_others_stay_away(
    optimizer: keras.optimizers.Optimizer,
) -> Iterator[None]:
    """Around what a rank alone cannot do, such as behind `if ring.rank() == 0:`."""
    try:
        yield
    except (PeerLostError, CollectiveTimeoutError) as error:
        raise type(error)(
            "[RK338] "
            f"the state of optimizer '{optimizer.name}' is divided among the ranks "
            "(shard_state=True), and not all of them have come to save it. Call "
            "model.save(path) on every rank, without `if ring.rank() == 0:`. "
            f"{error}"
        ) from error
