"""Writes backups while training goes on."""

import uuid
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.callbacks.background_write import BackgroundWrite, wait_for_all_writes
from ring_keras.callbacks.backup_files import (
    FIT,
    BackupFiles,
    BackupId,
    unfiled_values,
)
from ring_keras.monitoring.events import add_checkpoint

__all__ = ["BackupWriter"]


class BackupWriter:
    """Copies a model's state in memory, and writes it in another thread.

    At most one backup is being written, and none waits: the next one is copied when
    that is done.

    Args:
        files: Where to.
    """

    def __init__(self, files: BackupFiles) -> None:
        self._files = files
        self._write = BackgroundWrite("backup")
        self.fit = uuid.uuid4().hex
        """What stands for this `fit`, the same on all ranks that save."""

    def save(self, model: keras.Model, steps: int) -> None:
        """Returns when the state is copied.

        Args:
            model: With its variables built.
            steps: How many it has been trained for.

        Raises:
            Exception: Why the backup before could not be written; see `wait`.
        """
        self.wait()
        self.begin(internals.weights_file(model), model, steps)

    def begin(self, weights: memoryview, model: keras.Model, steps: int) -> None:
        """The same with what has been copied, when nothing is being written.

        Args:
            weights: As `keras_internals.weights_file` gives them.
            model: Whose weights they are.
            steps: See `save`.
        """
        noted = {**unfiled_values(model), FIT: self.fit}
        self._write.begin(lambda: self._save(weights, steps, noted))

    def _save(self, weights: memoryview, steps: int, noted: dict[str, Any]) -> None:
        add_checkpoint("Preemption", self._files.save(weights, steps, noted), steps)

    def wait(self) -> None:
        """Until the last backup is on the disk.

        Raises:
            Exception: Why it could not be written; once.
        """
        self._write.wait()

    def has_failed(self) -> bool:
        """Whether `wait` would raise, as far as is known."""
        return self._write.has_failed()

    def restore(
        self, model: keras.Model, only: BackupId | None = None
    ) -> BackupId | None:
        """Takes the newest whole backup, when all earlier ones have been written.

        What failed to be written by an earlier `fit` is forgotten.

        Args:
            model: With its variables built.
            only: See `BackupFiles.restore`.

        Returns:
            Which it was; None if there is no backup.

        Raises:
            ValueError: If it is one of `Elastic`: with its ranks the number of steps in
                an epoch changes, so that nobody would know which data are done.
        """
        self._write.forget()
        wait_for_all_writes()
        noted = self._files.restore(model, only)
        if noted is not None and "items" in noted:
            raise ValueError(
                "[RK685] "
                "ring_keras.callbacks.Preemption: the backup is one of Elastic, made "
                f"after {noted['items']} items of epoch {noted['epoch']} (the first is "
                "0), and its steps do not say how much of the data that is. Continue "
                "with Elastic and the same backup_dir, or give Preemption a directory "
                "of its own."
            )
        return None if noted is None else BackupId(noted["steps"], noted.get(FIT))

    def clear(self) -> None:
        """Removes the backups.

        Raises:
            OSError: If they cannot be removed.
        """
        self._files.clear()
