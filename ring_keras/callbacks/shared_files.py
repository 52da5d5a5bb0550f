"""Finds callbacks that would write the same file on several ranks."""

from collections.abc import Sequence

import keras

from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.hooking import shards_state
from ring_keras.states.written_files import file_of, warn_of_writers
from ring_keras.values.objects import allgather_object

__all__ = ["saves_on_all_ranks", "warn_of_shared_files"]


def saves_on_all_ranks(callback: keras.callbacks.Callback, model: keras.Model) -> bool:
    """Whether it saves a state of which each rank has a part; see `whole_save`."""
    checkpoints = type(callback) is keras.callbacks.ModelCheckpoint
    return checkpoints and shards_state(model)


def warn_of_shared_files(
    callbacks: Sequence[keras.callbacks.Callback],
    model: keras.Model,
    process_set: ProcessSet,
) -> None:
    """Says on the first rank which files several ranks are about to write.

    Args:
        callbacks: All callbacks of this rank's `fit`.
        model: That it trains.
        process_set: The ranks that train together; all call this.
    """
    by_rank = allgather_object(
        [
            file
            for callback in callbacks
            if (file := file_of(callback)) and not saves_on_all_ranks(callback, model)
        ],
        name="shared_files",
        process_set=process_set,
    )
    warn_of_writers(by_rank, process_set)
