"""Backups of a model in a directory, of which one that is whole is always there."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError

__all__ = ["BackupFiles"]

_WEIGHTS = ".weights.h5"
_RECORD = ".json"
# The last one, and the one before in case that it is damaged.
_KEPT = 2
_LOCK = "lock"


class BackupFiles:
    """Pairs of files: weights and the optimizer's state, and what they must be.

    A backup counts once its second file, the record, is there, which has a checksum
    of the first and one of its own. Each appears under its name when it is on the
    disk, and whole.

    Args:
        directory: Of these files alone; made where there is none.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(
        self, weights: memoryview, steps: int, place: Mapping[str, int] | None = None
    ) -> None:
        """Makes a backup, and then forgets all but the last ones.

        Args:
            weights: As `keras_internals.weights_file` gives them.
            steps: How many the model has been trained for.
            place: What else to note, for `restore`.

        Raises:
            RingKerasError: If the files cannot be written; it names the path and the
                space that is left there. Earlier backups are still there.
        """
        path = self._weights(steps)
        noted = {**(place or {}), "steps": steps, "sha256": _sha256(weights)}
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            _write(path, weights)
            _write(_record_of(path), _sealed(noted))
            # Newer ones have been passed over: they are damaged.
            records = [r for r in self._newest_first() if r <= _record_of(path)]
            self._remove_all_but(records[:_KEPT])
        except OSError as error:
            raise RingKerasError(
                f"cannot write the backup {path}: {error.strerror or error}. It has "
                f"{len(weights):,} bytes; {_free_space(path)}. Earlier backups are as "
                "they were."
            ) from error

    def save_if_newest(
        self, weights: memoryview, steps: int, place: Mapping[str, int]
    ) -> None:
        """The same, by processes that do not know of each other.

        Only if there is no whole one of as many steps.

        Raises:
            RingKerasError: See `save`.
            OSError: If there can be no such directory.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            newest = self._newest_whole()
            if newest is None or newest[1]["steps"] < steps:
                self.save(weights, steps, place)

    def restore(self, model: keras.Model) -> dict[str, Any] | None:
        """Loads the newest backup that is whole; warns of newer ones that are not.

        Args:
            model: A compiled one, with its weights built.

        Returns:
            What was noted with it; None if there was none.
        """
        newest = self._newest_whole()
        if newest is None:
            return None
        weights, noted = newest
        optimizer: Any = model.optimizer
        if not optimizer.built:  # Else it would not take its state.
            optimizer.build(model.trainable_variables)
        model.load_weights(weights)
        for variable in optimizer.variables:
            # One rank's, of some steps: no rank has the others' parts.
            if internals.accumulates(variable):
                variable.assign(np.zeros(variable.shape, variable.dtype))
        return noted

    def clear(self) -> None:
        """Removes every backup; nothing else that lies there."""
        self._remove_all_but([])
        for name in (f"unfinished{_WEIGHTS}", f"unfinished{_RECORD}", _LOCK):
            (self._directory / name).unlink(missing_ok=True)

    def _weights(self, steps: int) -> Path:
        return self._directory / f"step-{steps:012}{_WEIGHTS}"

    def _newest_first(self) -> list[Path]:
        return sorted(self._directory.glob(f"step-*{_RECORD}"), reverse=True)

    def _newest_whole(self) -> tuple[Path, dict[str, Any]] | None:
        """Its weights, and what was noted with them."""
        for record in self._newest_first():
            weights = record.with_name(record.stem + _WEIGHTS)
            try:
                noted = _unsealed(record.read_bytes())
                if _sha256_of_file(weights) != noted["sha256"]:
                    raise ValueError("its checksum is another one")
            except (OSError, ValueError) as error:
                logging.warning(
                    "ring_keras: the backup %s is damaged, and passed over: %s. An "
                    "earlier one is taken, if there is one.",
                    weights,
                    error,
                )
            else:
                return weights, noted
        return None

    def _remove_all_but(self, kept: Sequence[Path]) -> None:
        """Weights without a record, too, which are no backup."""
        stems = {record.stem for record in kept}
        # In this order: what is left of a pair is no backup.
        for ending in (_RECORD, _WEIGHTS):
            for path in self._directory.glob(f"step-*{ending}"):
                if path.name.removesuffix(ending) not in stems:
                    path.unlink(missing_ok=True)


def _record_of(weights: Path) -> Path:
    return weights.with_name(weights.name.removesuffix(_WEIGHTS) + _RECORD)


def _sealed(noted: Mapping[str, Any]) -> bytes:
    """A record's contents, with their own checksum."""
    return json.dumps({**noted, "record_sha256": _seal(noted)}).encode()


def _unsealed(content: bytes) -> dict[str, Any]:
    """What was noted.

    Raises:
        ValueError: If it is not what was written.
    """
    try:
        noted = json.loads(content)
    except ValueError:
        noted = None
    if not isinstance(noted, dict) or noted.pop("record_sha256", "") != _seal(noted):
        raise ValueError("its record is not what was written")
    return noted


def _seal(noted: Mapping[str, Any]) -> str:
    return _sha256(json.dumps(noted, sort_keys=True).encode())


def _sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def _sha256_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _write(path: Path, content: bytes | memoryview) -> None:
    """Gives a file its name once it is on the disk."""
    unfinished = path.with_name("unfinished" + "".join(path.suffixes))
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _free_space(path: Path) -> str:
    """Of the file system on which it would lie."""
    for directory in path.parents:
        with contextlib.suppress(OSError):
            return f"{shutil.disk_usage(directory).free:,} bytes are free there"
    return "how many are free there is not known"
