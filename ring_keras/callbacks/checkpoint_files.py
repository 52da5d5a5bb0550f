"""The files of checkpoints: which there are, which of them are whole, and old ones.

A checkpoint is as many parts as there were ranks, each of which has written its own,
and a record of each part, which comes after it. All of them name the number of parts.
So it is complete when all of its records are there, whoever is the last: nobody has to
wait for the others, or to ask them. What the parts of one checkpoint have in common is
in their names. Those of another life of the job, or of other ranks, have other names.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ring_keras.callbacks.backup_directory import Directory, directory_at, is_remote
from ring_keras.callbacks.sealed_records import sealed, sha256, unsealed
from ring_keras.errors import RingKerasError

__all__ = ["CheckpointFiles", "CheckpointName"]

PART, RECORD = ".part", ".json"
_NAME = re.compile(
    r"run-(\d{4,})-step-(\d{12,})\.([0-9a-f]{8})-g(-?\d+)\.(\d+)-of-(\d+)"
    r"(\.part|\.json)"
)
_RUN = "run.json"


@dataclass(frozen=True, order=True)
class CheckpointName:
    """What all parts of a checkpoint have in common; later ones are greater.

    Attributes:
        run: How many runs have saved here, with this one.
        steps: For how many the model has been trained.
        token: Drawn by that run, in case that two have counted alike.
        generation: Of the ranks: it grows where these change.
        size: How many ranks have each written a part.
    """

    run: int
    steps: int
    token: str
    generation: int
    size: int

    def part(self, place: int) -> str:
        """The file of the rank at that place among those that train together."""
        return self._stem(place) + PART

    def record(self, place: int) -> str:
        """Says what is in that file, and what its checksum must be."""
        return self._stem(place) + RECORD

    def _stem(self, place: int) -> str:
        return (
            f"run-{self.run:04}-step-{self.steps:012}.{self.token}-g{self.generation}"
            f".{place}-of-{self.size}"
        )

    def __str__(self) -> str:
        return f"step {self.steps:,} of run {self.run}"


class CheckpointFiles:
    """Those in one directory.

    Args:
        directory: A path or a URL, of these files alone.

    Raises:
        ValueError: If there can be no such directory.
    """

    def __init__(self, directory: str | Path) -> None:
        if not is_remote(directory):
            directory = Path(directory).absolute()  # Though the program goes elsewhere.
        self.directory: Directory = directory_at(directory)

    def begin_run(self, token: str) -> int:
        """Notes that a run begins, for the others to see; returns its number.

        Raises:
            RingKerasError: If that cannot be written.
        """
        run = max((name.run for name in self.found()), default=0) + 1
        self._write(_RUN, sealed({"run": run, "token": token}))
        return run

    def require_run(self, token: str) -> None:
        """Raises if this is not the directory in which that run has begun.

        Raises:
            RingKerasError: If so, or if nobody knows.
        """
        try:
            seen = unsealed(self.directory.read(_RUN)).get("token")
        except (OSError, ValueError) as error:
            seen = f"nothing: {error}"
        if seen != token:
            raise RingKerasError(
                "[RK518] "
                f"{self.directory.path(_RUN)}, which the first rank has just written, "
                f"is not there, or another one. Expected '{token}', found '{seen}'. "
                "Give all ranks one directory that all of their hosts see, or a URL "
                "of an object store."
            )

    def found(self) -> dict[CheckpointName, set[int]]:
        """All of them, each with the places whose parts are whole."""
        names: dict[CheckpointName, set[int]] = {}
        for file, name, place in self._files():
            there = names.setdefault(name, set())
            if file.endswith(RECORD):
                there.add(place)
        return names

    def complete(self) -> list[CheckpointName]:
        """Those of which all parts are there, the newest first."""
        return sorted(
            (name for name, there in self.found().items() if len(there) == name.size),
            reverse=True,
        )

    def write(
        self,
        name: CheckpointName,
        place: int,
        content: memoryview,
        noted: Mapping[str, Any],
    ) -> str:
        """Puts a rank's part there, then its record.

        Returns:
            Where it is.

        Raises:
            RingKerasError: If that fails; it names the path and the space that is left.
        """
        noted = {**noted, "nbytes": len(content), "sha256": sha256(content)}
        self._write(name.part(place), content)
        self._write(name.record(place), sealed(noted))
        return self.directory.path(name.part(place))

    def _write(self, file: str, content: bytes | memoryview) -> None:
        try:
            self.directory.write(file, content)
        except OSError as error:
            raise RingKerasError(
                "[RK517] "
                f"cannot write {self.directory.path(file)}: "
                f"{error.strerror or error}. It has {len(content):,} bytes; "
                f"{self.directory.free_space()}. Earlier checkpoints are as they were."
            ) from error

    def remove_old(self, token: str, since: CheckpointName, keep: int) -> None:
        """Removes all but the newest complete ones, and what may yet be complete.

        Args:
            token: Of this run.
            since: The oldest of which a rank may still write a part; others may have
                begun newer ones meanwhile.
            keep: How many complete ones stay.

        Raises:
            OSError: If a file cannot be removed.
            RingKerasError: If nobody knows which are there.
        """
        files = list(self._files())
        complete = self.complete()
        stays = set(complete[:keep])
        stays |= {name for _, name, _ in files if name >= since} - set(complete)
        # In this order: what is left of a pair counts for nothing.
        for ending in (RECORD, PART):
            for file, name, _ in files:
                if file.endswith(ending) and name not in stays:
                    self.directory.remove(file)
        for file in self.directory.names():
            # Of ranks that were killed while they wrote.
            if file.startswith("unfinished.") and token not in file:
                self.directory.remove(file)

    def _files(self) -> Iterator[tuple[str, CheckpointName, int]]:
        """Each file, of which checkpoint, and of which place in it."""
        for file in self.directory.names():
            found = _NAME.fullmatch(file)
            if found is None:
                continue
            run, steps, token, generation, place, size, _ = found.groups()
            name = CheckpointName(
                int(run), int(steps), token, int(generation), int(size)
            )
            if int(place) < name.size:
                yield file, name, int(place)
