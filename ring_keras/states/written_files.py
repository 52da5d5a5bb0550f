"""Keras's callbacks that write files, which ranks may have in common."""

from pathlib import Path

import keras

__all__ = ["file_of"]

# Keras's callbacks that write, and the attribute that says where.
_WRITERS = {
    "BackupAndRestore": "backup_dir",
    "CSVLogger": "filename",
    "ModelCheckpoint": "filepath",
    "TensorBoard": "log_dir",
}


def file_of(callback: keras.callbacks.Callback) -> str | None:
    """What it writes, for messages, if it is one of Keras's own that write."""
    for name, attribute in _WRITERS.items():
        # By its own class: a subclass may know about ranks, as one of ours does.
        if type(callback) is getattr(keras.callbacks, name):
            path = str(getattr(callback, attribute))
            if "://" not in path:
                path = str(Path(path).absolute())
            return f"'{path}' ({name})"
    return None
