"""Callbacks that save, where ranks divide an optimizer's state, or have own layers."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.callbacks.broadcast_global_variables import BroadcastGlobalVariables
from ring_keras.callbacks.root_only import RootOnly
from ring_keras.errors import RankMismatchError, RingKerasError
from ring_keras.job.process_set import ProcessSet, has_peers
from ring_keras.optimizers.hooking import shards_state
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.states.written_files import file_of
from ring_keras.training.distributed_models import is_local_in, process_set_of

__all__ = [
    "backups_of_all",
    "make_directory",
    "own_of_each_rank",
    "refuse_savers_of_one_rank",
    "refuse_where_ranks_change",
    "require_same_backups",
    "require_same_savers",
    "when_it_saves",
]

# By name, since some are in rooms that know this one. They save on one rank.
_BACKUPS = {"keras.BackupAndRestore", "ring_keras.Preemption"}
_REFUSED = {
    *("keras.BackupAndRestore", "keras.OrbaxCheckpoint"),
    "ring_keras.ReportCheckpoint",
}
# In which all ranks meet.
_OF_ALL = {"keras.ModelCheckpoint", "keras.SwapEMAWeights"}


def refuse_savers_of_one_rank(
    callbacks: Sequence[keras.callbacks.Callback], model: keras.Model
) -> None:
    """Raises if one of these needs a state of which each rank has a part, or its own.

    Raises:
        ValueError: Before anything is trained.
        RingKerasError: The same.
    """
    if not has_peers(process_set_of(model)):
        return
    local = own_of_each_rank(callbacks, model)
    for callback in callbacks:
        inside = callback.callback if isinstance(callback, RootOnly) else callback
        names = {
            f"{base.__module__.split('.')[0]}.{base.__name__}"
            for base in type(inside).__mro__
        }
        if local is not None:
            _refuse_backups(sorted(names & _BACKUPS), local)
        if not shards_state(model):
            continue
        refused = sorted(names & _REFUSED)
        if type(callback) is keras.callbacks.BackupAndRestore:
            refused = []
        if inside is not callback and names & _OF_ALL:
            refused = [f"ring_keras.RootOnly({type(inside).__name__})"]
        by_epochs = getattr(inside, "save_freq", "epoch") == "epoch"
        if "ring_keras.BestModelCheckpoint" in names and not by_epochs:
            refused = ["ring_keras.BestModelCheckpoint(save_freq=<batches>)"]
        if not refused:
            continue
        raise ValueError(
            "[RK336] "
            f"{refused[0].partition('.')[2]} does not work with an optimizer with "
            "shard_state=True, for now: each rank has a part of the state. Save by a "
            "keras.callbacks.ModelCheckpoint on every rank, not in RootOnly, or leave "
            "out shard_state."
        )


def own_of_each_rank(
    callbacks: Sequence[keras.callbacks.Callback], model: keras.Model
) -> str | None:
    """The name of the first variable that each rank trains, or keeps, for itself.

    Args:
        callbacks: Of its `fit`.
        model: That is trained.
    """
    is_local = is_local_in(model)
    broadcasts = [c for c in callbacks if isinstance(c, BroadcastGlobalVariables)]
    keys = {key for callback in broadcasts for key in callback.local_keys}
    for variable in model.weights:
        if is_local(variable) or internals.variable_key(variable) in keys:
            return str(getattr(variable, "path", variable.name))
    return None


def refuse_where_ranks_change(
    callbacks: Sequence[keras.callbacks.Callback], model: keras.Model
) -> None:
    """Raises if one of these does not go with a divided state that is divided anew.

    Also where there is one rank as yet.

    Raises:
        ValueError: Before anything is trained.
    """
    sharded = [
        optimizer
        for optimizer in internals.innermost_optimizers(model)
        if (hook := OptimizerHook.of(optimizer)) is not None
        and hook.options.shard_state
    ]
    for callback in callbacks if sharded else ():
        inside = callback.callback if isinstance(callback, RootOnly) else callback
        names = {
            f"{base.__module__.split('.')[0]}.{base.__name__}"
            for base in type(inside).__mro__
        }
        refused = sorted(names & (_REFUSED | _OF_ALL))
        if refused:
            raise ValueError(
                "[RK336] "
                f"ring_keras.callbacks.Elastic and {refused[0].partition('.')[2]} do "
                "not work in one fit() with an optimizer with shard_state=True, for "
                "now. Save by ring_keras.callbacks.Checkpoint, or leave out "
                "shard_state."
            )
        if getattr(inside, "momentum_correction", False) and any(
            map(internals.velocities, sharded)
        ):
            raise ValueError(
                "[RK336] "
                f"ring_keras.callbacks.Elastic and {type(inside).__name__} do not work "
                "in one fit() with an optimizer with shard_state=True whose momentum "
                "it scales between two steps, for now: the copies of other ranks' "
                "parts are made after a step. Give it momentum_correction=False."
            )


def _refuse_backups(names: Sequence[str], local: str) -> None:
    """Of the first rank's model, from which all would go on."""
    if names:
        raise RingKerasError(
            "[RK516] "
            f"{names[0].partition('.')[2]} saves what the first rank has, and each "
            f"rank trains its own '{local}' "
            "(local_layers or local_variables): after a restart the others would begin "
            "with new ones. "
            "Save on each rank, to a path of its own, by model.save()."
        )


def backups_of_all(
    callbacks: Sequence[keras.callbacks.Callback], model: keras.Model
) -> list[list[Any]]:
    """In plain values: which `BackupAndRestore` save a state that ranks divide."""
    return [
        [file_of(callback), callback.save_freq]
        for callback in callbacks
        if type(callback) is keras.callbacks.BackupAndRestore and shards_state(model)
    ]


def require_same_backups(
    everyones: Sequence[list[list[Any]]], process_set: ProcessSet
) -> None:
    """Raises if a rank would save with the others, when some do not.

    Args:
        everyones: For each rank of the process set: `backups_of_all`.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank.
    """
    for rank, theirs in zip(process_set.ranks, everyones, strict=True):
        if theirs != everyones[0]:
            raise RankMismatchError(
                "[RK338] "
                "with shard_state=True the ranks save together, but not with the same "
                "backup_dir and save_freq of BackupAndRestore: ranks "
                f"{process_set.ranks[0]} and {rank} differ. Give every rank the same."
            )


def make_directory(callback: keras.callbacks.ModelCheckpoint) -> None:
    """Makes the one that it saves to: Keras's fails where two ranks make it at once."""
    directory = Path(callback.filepath).parent
    if "{" not in str(directory) and "://" not in callback.filepath:
        directory.mkdir(parents=True, exist_ok=True)


def when_it_saves(callback: keras.callbacks.ModelCheckpoint) -> list[Any]:
    """In plain values, what the ranks must have the same of."""
    return [
        callback.save_freq,
        callback.monitor if callback.save_best_only else None,
        callback.best if callback.save_best_only else None,
    ]


def require_same_savers(
    everyones: Sequence[list[list[Any]]],
    validate: Sequence[bool],
    process_set: ProcessSet,
) -> None:
    """Raises if a rank would save, together with all others, when some do not.

    Args:
        everyones: For each rank of the process set: `when_it_saves`, of each callback.
        validate: Whether each rank has validation data.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank.
    """
    ranks = process_set.ranks
    for rank, theirs in zip(ranks, everyones, strict=True):
        if len(theirs) != len(everyones[0]):
            raise RankMismatchError(
                "[RK338] "
                "with shard_state=True the ranks save together, but rank "
                f"{ranks[0]} has {len(everyones[0])} ModelCheckpoint in this "
                f"fit(), and rank {rank} has {len(theirs)}. Give every rank the same "
                "callbacks, without `if ring.rank() == 0:`."
            )
        if theirs != everyones[0]:
            raise RankMismatchError(
                "[RK338] "
                "with shard_state=True the ranks save together, but not with the same "
                "save_freq, save_best_only, monitor and best value of ModelCheckpoint: "
                f"ranks {ranks[0]} and {rank} differ. Give every rank the same."
            )
    by_metric = [one for one in everyones[0] if one[1] is not None]
    if any(save_freq != "epoch" for save_freq, *_ in by_metric):
        why = "metrics after a batch are of that rank's data: leave out save_freq"
    elif by_metric and len(set(validate)) > 1:
        some = list(itertools.compress(ranks, validate))
        why = f"only ranks {some} have validation_data: give every rank its part"
    else:
        return
    raise RankMismatchError(
        "[RK338] "
        "with shard_state=True the ranks save together, but each would decide by "
        "metrics of its own whether to (ModelCheckpoint with save_best_only), as "
        f"{why}."
    )
