"""Callbacks where ranks divide the state of an optimizer: all of them save together."""

from collections.abc import Sequence

import keras

from ring_keras.callbacks.root_only import RootOnly
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.hooking import shards_state

__all__ = ["refuse_savers_of_one_rank", "require_same_savers"]

# By name, since some are in rooms that know this one. They save on one rank; Keras's
# SwapEMAWeights puts all averages into the model.
_REFUSED = {
    "keras.BackupAndRestore",
    "keras.SwapEMAWeights",
    "ring_keras.BestModelCheckpoint",
    "ring_keras.Preemption",
    "ring_keras.ReportCheckpoint",
}


def refuse_savers_of_one_rank(
    callbacks: Sequence[keras.callbacks.Callback], model: keras.Model
) -> None:
    """Raises if one of these needs a state of which each rank has a part.

    Raises:
        ValueError: Before anything is trained.
    """
    if not shards_state(model):
        return
    for callback in callbacks:
        inside = callback.callback if isinstance(callback, RootOnly) else callback
        names = {
            f"{base.__module__.split('.')[0]}.{base.__name__}"
            for base in type(inside).__mro__
        }
        refused = sorted(names & _REFUSED)
        if inside is not callback and "keras.ModelCheckpoint" in names:
            refused = ["ring_keras.RootOnly(ModelCheckpoint)"]
        if not refused:
            continue
        raise ValueError(
            "[RK336] "
            f"{refused[0].partition('.')[2]} does not work with an optimizer with "
            "shard_state=True, for now: each rank has a part of the state. Save by a "
            "keras.callbacks.ModelCheckpoint on every rank, not in RootOnly, or leave "
            "out shard_state."
        )


def require_same_savers(counts: Sequence[int], process_set: ProcessSet) -> None:
    """Raises if some ranks have fewer callbacks that save on all of them together.

    Args:
        counts: Of each rank of the process set: how many.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank.
    """
    for rank, count in zip(process_set.ranks, counts, strict=True):
        if count != counts[0]:
            raise RankMismatchError(
                "[RK338] "
                "with shard_state=True the ranks save together, but rank "
                f"{process_set.ranks[0]} has {counts[0]} ModelCheckpoint in this "
                f"fit(), and rank {rank} has {count}. Give every rank the same "
                "callbacks, without `if ring.rank() == 0:`."
            )
