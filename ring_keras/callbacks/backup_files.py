"""Backups of a model in a directory, of which one that is whole is always there."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import logging

from ring_keras import keras_internals as internals

__all__ = ["BackupFiles"]

_WEIGHTS = ".weights.h5"
# The last one, and the one before in case that it is damaged.
_KEPT = 2
_LOCK = "lock"


class BackupFiles:
    """Pairs of files: weights and the optimizer's state, and what they must be.

    A backup counts once its second file, which has the checksum of the first, is
    there. Each appears under its name when it is on the disk, and whole.

    Args:
        directory: Of these files alone; made where there is none.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(
        self, model: keras.Model, steps: int, place: Mapping[str, int] | None = None
    ) -> None:
        """Makes a backup, and then forgets all but the last ones.

        Args:
            model: With its variables built.
            steps: How many it has been trained for.
            place: What else to note, for `restore`.

        Raises:
            OSError: If the files cannot be written; earlier backups are still there.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        weights = self._weights(steps)
        unfinished = weights.with_name(f"unfinished{_WEIGHTS}")
        try:
            model.save_weights(unfinished)
            digest = _sha256(unfinished)
            _publish(unfinished, weights)
            record = _record_of(weights)
            unfinished = record.with_name("unfinished.json")
            noted = {**(place or {}), "steps": steps, "sha256": digest}
            unfinished.write_text(json.dumps(noted))
            _publish(unfinished, record)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
        for old in self._newest_first()[_KEPT:]:
            self._remove(old)

    def save_if_newest(
        self, model: keras.Model, steps: int, place: Mapping[str, int]
    ) -> None:
        """The same, by processes that do not know of each other.

        Only if there is none of as many steps.

        Raises:
            OSError: See `save`.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            newest = next(iter(self._newest_first()), None)
            if newest is None or newest.name < _record_of(self._weights(steps)).name:
                self.save(model, steps, place)

    def restore(self, model: keras.Model) -> dict[str, Any] | None:
        """Loads the newest backup that is whole; says so in the log if others are not.

        Args:
            model: A compiled one, with its weights built.

        Returns:
            What was noted with it; None if there was none.
        """
        for record in self._newest_first():
            weights = record.with_name(record.stem + _WEIGHTS)
            try:
                noted: dict[str, Any] = json.loads(record.read_text())
                whole = noted["sha256"] == _sha256(weights)
            except (OSError, ValueError, KeyError):
                whole = False
            if whole:
                optimizer: Any = model.optimizer
                if not optimizer.built:  # Else it would not take its state.
                    optimizer.build(model.trainable_variables)
                model.load_weights(weights)
                for variable in optimizer.variables:
                    # One rank's, of some steps: no rank has the others' parts.
                    if internals.accumulates(variable):
                        variable.assign(np.zeros(variable.shape, variable.dtype))
                return noted
            logging.warning(
                "ring_keras: the backup %s is damaged. An earlier one is taken, if "
                "there is one.",
                weights,
            )
        return None

    def clear(self) -> None:
        """Removes every backup; nothing else that lies there."""
        for record in self._newest_first():
            self._remove(record)
        (self._directory / _LOCK).unlink(missing_ok=True)

    def _weights(self, steps: int) -> Path:
        return self._directory / f"step-{steps:012}{_WEIGHTS}"

    def _newest_first(self) -> list[Path]:
        return sorted(self._directory.glob("step-*.json"), reverse=True)

    def _remove(self, record: Path) -> None:
        # In this order: what is left of a pair is no backup.
        record.unlink(missing_ok=True)
        record.with_name(record.stem + _WEIGHTS).unlink(missing_ok=True)


def _record_of(weights: Path) -> Path:
    return weights.with_name(weights.name.removesuffix(_WEIGHTS) + ".json")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _publish(unfinished: Path, path: Path) -> None:
    """Gives a file its name once it is on the disk."""
    _sync(unfinished)
    unfinished.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
