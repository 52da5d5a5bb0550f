"""Callbacks that change what is trained, so that all ranks need them."""

from collections.abc import Sequence

import keras
from absl import logging

from ring_keras.callbacks.root_only import RootOnly
from ring_keras.job.process_set import ProcessSet

__all__ = ["changing_callbacks", "warn_of_missing"]

# Keras's callbacks that set weights or learning rates, or end training. What
# BackupAndRestore restores on one rank all begin with.
_NAMES = (
    "EarlyStopping",
    "LearningRateScheduler",
    "ReduceLROnPlateau",
    "SwapEMAWeights",
)


def changing_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """The names of those that run on this rank, in order."""
    kinds = tuple(
        getattr(keras.callbacks, name)
        for name in _NAMES
        if hasattr(keras.callbacks, name)  # Older Keras has not all.
    )
    run = [one.running() if isinstance(one, RootOnly) else one for one in callbacks]
    return sorted(type(one).__name__ for one in run if isinstance(one, kinds))


def warn_of_missing(by_rank: Sequence[list[str]], process_set: ProcessSet) -> None:
    """Says on the first rank which of them are on some ranks only.

    Args:
        by_rank: What `changing_callbacks` returns on each rank.
        process_set: The ranks that train together.
    """
    if process_set.rank() != 0:
        return
    for name in sorted({name for names in by_rank for name in names}):
        counts = [names.count(name) for names in by_rank]
        if len(set(counts)) > 1:
            most = max(counts)
            ranks = [
                rank
                for rank, count in zip(process_set.ranks, counts, strict=True)
                if count == most
            ]
            logging.warning(
                "ring_keras: [RK340] fit(): the callback %s is on ranks %s only. It "
                "changes training, and the others train without it: give it to every "
                "rank. Metrics are those of all ranks, so all decide alike.",
                name,
                ranks,
            )
