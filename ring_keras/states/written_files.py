"""Keras's callbacks that write files, which ranks may have in common."""

from collections.abc import Collection, Sequence
from pathlib import Path

import keras
from absl import logging

from ring_keras.job.process_set import ProcessSet

__all__ = ["file_of", "warn_of_writers"]

# Keras's callbacks that write, and the attribute that says where.
_WRITERS = {
    "BackupAndRestore": "backup_dir",
    "CSVLogger": "filename",
    "ModelCheckpoint": "filepath",
    "OrbaxCheckpoint": "directory",
    "TensorBoard": "log_dir",
}


def file_of(callback: keras.callbacks.Callback) -> str | None:
    """What it writes, for messages, if it is one of Keras's own that write."""
    for name, attribute in _WRITERS.items():
        # By its own class: a subclass may know about ranks, as one of ours does.
        if type(callback) is getattr(keras.callbacks, name, None):
            path = str(getattr(callback, attribute))
            if "://" not in path:
                path = str(Path(path).absolute())
            return f"'{path}' ({name})"
    return None


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
