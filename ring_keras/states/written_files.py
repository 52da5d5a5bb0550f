"""Keras's callbacks that write files, which ranks may have in common."""

from collections.abc import Collection, Sequence
from pathlib import Path

import keras
from absl import logging

from ring_keras.job.process_set import ProcessSet

__all__ = ["file_of", "warn_of_layers_left_out", "warn_of_writers"]

# Keras's callbacks that write, and the attribute that says where.
_WRITERS = {
    "BackupAndRestore": "backup_dir",
    "CSVLogger": "filename",
    "ModelCheckpoint": "filepath",
    "OrbaxCheckpoint": "directory",
    "TensorBoard": "log_dir",
}
# Those that write a model's weights. Backups, which restore them too, are refused.
_SAVERS = ("ModelCheckpoint", "OrbaxCheckpoint")


def file_of(callback: keras.callbacks.Callback) -> str | None:
    """What it writes, for messages, if it is one of Keras's own that write."""
    for name, attribute in _WRITERS.items():
        if _is_keras(callback, name):
            return _described(callback, attribute)
    return None


def _is_keras(callback: keras.callbacks.Callback, name: str) -> bool:
    """By its own class: a subclass may know about ranks, as one of ours does."""
    return type(callback) is getattr(keras.callbacks, name, None)


def _described(callback: keras.callbacks.Callback, attribute: str) -> str:
    path = str(getattr(callback, attribute))
    if "://" not in path:
        path = str(Path(path).absolute())
    return f"'{path}' ({type(callback).__name__})"


def warn_of_writers(
    by_rank: Sequence[Collection[str]], process_set: ProcessSet
) -> None:
    """Says on the first rank which files several ranks are about to write.

    Args:
        by_rank: What each rank is about to write, as `file_of` says it.
        process_set: The ranks.
    """
    if process_set.rank() != 0:
        return
    for file in sorted({file for files in by_rank for file in files}):
        writers = [
            rank
            for rank, files in zip(process_set.ranks, by_rank, strict=True)
            if file in files
        ]
        if len(writers) > 1:
            logging.warning(
                "ring_keras: [RK611] ranks %s all write %s, and may spoil it. Wrap the "
                "callback in ring_keras.callbacks.RootOnly(), list it on one rank "
                "only, or give each rank a path of its own.",
                writers,
                file,
            )


def warn_of_layers_left_out(
    callbacks: Sequence[keras.callbacks.Callback],
    common: Collection[str],
    own: str | None,
    root_rank: int,
    process_set: ProcessSet,
) -> None:
    """Says on the first rank which files will have what one rank trains for itself.

    Args:
        callbacks: Of this rank's `fit`, but for those by which all ranks save.
        common: What the root writes for all ranks, as `file_of` says it.
        own: What each rank trains for itself; None if there is nothing.
        root_rank: The one that writes.
        process_set: The ranks that train together.
    """
    if own is None or process_set.rank() != 0:
        return
    for callback in callbacks:
        writer, file = root_rank, file_of(callback)
        if getattr(callback, "saves_on_first_rank", False):
            writer, file = process_set.ranks[0], _described(callback, "filepath")
        elif file not in common or not any(
            _is_keras(callback, name) for name in _SAVERS
        ):
            continue
        logging.warning(
            "ring_keras: [RK653] only rank %d saves %s, and each rank trains its own "
            "'%s' (local_layers or local_variables): no file has those of the other "
            "ranks. Save by a keras.callbacks.ModelCheckpoint to a path for each rank, "
            "with ring_keras.rank() in it.",
            writer,
            file,
            own,
        )
