"""Reads checkpoints: verifies all parts, and puts them together."""

import contextlib
import io
import mmap
import tempfile
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.callbacks.checkpoint_files import CheckpointFiles, CheckpointName
from ring_keras.callbacks.checkpoint_state import ModelState
from ring_keras.callbacks.sealed_records import sha256_of_file, unsealed
from ring_keras.errors import RingKerasError, code_of

__all__ = ["WholeCheckpoint", "newest_whole", "whole_checkpoint"]


class WholeCheckpoint:
    """One of which all parts are as they were written.

    Args:
        name: What it is called.
        records: Of its parts, by their places.
        parts: Their contents.

    Attributes:
        name: What it is called.
        record: Of the first part, with what all parts have in common.
    """

    def __init__(
        self, name: CheckpointName, records: list[dict[str, Any]], parts: list[Any]
    ) -> None:
        self.name = name
        self.record = records[0]
        self._records = records
        self._parts = parts
        self._places: list[dict[int, list[int]]] = [
            dict(record["values"]) for record in records
        ]
        # Of what several ranks have their own of, a file has the first one's.
        self._part_of = {
            number: place
            for place in reversed(range(len(records)))
            for number in self._places[place]
        }
        # By the number of what ranks had pieces of: the places of these ranks.
        self._cut: dict[int, list[int]] = dict(records[0].get("cut", ()))
        missing = set(range(len(self._described))) - self._part_of.keys()
        if missing:
            raise ValueError(f"no part has value {min(missing)}")

    @property
    def _described(self) -> list[Any]:
        described: list[Any] = self.record["model"]["values"]
        return described

    def value(self, number: int, place: int | None = None) -> Any:
        """An array that changes no more; of what ranks have their own of, one's."""
        own = self._part_of[number] if place is None else place
        dtype, shape = self._described[number]
        pieces = []
        for place_of_piece in self._cut.get(number, [own]):
            begin, nbytes = self._places[place_of_piece][number]
            content = self._parts[place_of_piece][begin : begin + nbytes]
            pieces.append(np.frombuffer(content, tf.as_dtype(dtype).as_numpy_dtype))
        array = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return array.reshape(shape)

    def own_of(self, place: int) -> dict[int, Any]:
        """What the rank at that place had its own of, by number."""
        return {
            number: np.array(self.value(number, place))
            for number in self._records[place]["own"]
        }

    def weights(self) -> bytes:
        """A file of weights, with the optimizer's state, as Keras would have saved."""
        file = io.BytesIO()
        self._write_weights(file)
        return file.getvalue()

    def _write_weights(self, file: Path | io.BytesIO) -> None:
        groups = [
            internals.FileGroup(path, metadata, values)
            for path, metadata, values in self.record["model"]["groups"]
        ]
        internals.write_groups(file, groups, self.value)

    def archive(self) -> bytes:
        """The whole model, as `model.save("x.keras")` would have saved it.

        Raises:
            RingKerasError: If the model could not be described.
        """
        begin, nbytes = self.record["archive"]
        if not nbytes:
            raise RingKerasError(
                "[RK519] "
                f"the checkpoint of {self.name} has no description of its model: "
                f"{self.record['no_archive']}. Have only weights written, into a "
                "file whose name ends in .weights.h5, and load them by load_weights()."
            )
        description = bytes(self._parts[0][begin : begin + nbytes])
        return internals.with_weights(description, self.weights())

    def restore(self, model: keras.Model, state: ModelState) -> None:
        """Loads the weights and the optimizers' state, or this rank's part of it.

        Raises:
            RingKerasError: If they are those of another model.
        """
        difference = state.difference(self.record["model"])
        if difference:
            raise RingKerasError(
                "[RK518] "
                f"the checkpoint of {self.name} is one of another model: {difference}. "
                "Give this model another directory, or remove the files in this one."
            )
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model.weights.h5"
            self._write_weights(path)
            model.load_weights(path)
        for number in state.unfiled:
            state.values[number].variable.assign(self.value(number))


@contextlib.contextmanager
def whole_checkpoint(
    files: CheckpointFiles, name: CheckpointName
) -> Iterator[WholeCheckpoint]:
    """One, as long as its files are needed.

    Raises:
        RingKerasError: If a part is damaged, which it names, or cannot be read.
    """
    with contextlib.ExitStack() as stack:
        records, parts = [], []
        for place in range(name.size):
            file = name.record(place)
            try:
                record = unsealed(files.directory.read(file))
                file = name.part(place)
                path = stack.enter_context(files.directory.local_copy(file))
                if sha256_of_file(path) != record["sha256"]:
                    raise ValueError("its checksum is another one")
                parts.append(stack.enter_context(_mapped(path)))
            except (OSError, ValueError) as error:
                raise RingKerasError(
                    "[RK518] "
                    f"the checkpoint of {name} is damaged: "
                    f"{files.directory.path(file)}: {error}"
                ) from error
            records.append(record)
        yield WholeCheckpoint(name, records, parts)


@contextlib.contextmanager
def newest_whole(
    files: CheckpointFiles, *, least_steps: int, ended: AbstractSet[str]
) -> Iterator[WholeCheckpoint | None]:
    """The newest one that is not damaged; warns of those that are.

    Args:
        files: Where they are.
        least_steps: If it has fewer, there is none: an older one of more steps is of a
            run that nobody goes on with.
        ended: Tokens of runs. If it is of one of those, there is none.

    Raises:
        RingKerasError: If there are some, and all are damaged; or if nobody knows.
    """
    damaged: RingKerasError | None = None
    for name in files.complete():
        if name.token in ended or name.steps < least_steps:
            break
        with contextlib.ExitStack() as stack:
            try:
                whole = stack.enter_context(whole_checkpoint(files, name))
            except RingKerasError as error:
                if code_of(error) != "RK518":
                    raise  # What cannot be reached is not damaged.
                damaged = error
                text = str(error).removeprefix("[RK518] ")
                logging.warning(
                    "ring_keras: [RK658] %s. An earlier one is taken, if there is one.",
                    text,
                )
                continue
            yield whole
            return
    if damaged is not None:
        raise damaged
    yield None


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[Any]:
    if not path.stat().st_size:  # More ranks than variables.
        yield b""
        return
    with path.open("rb") as file:
        # Not closed before nobody looks at it any more.
        yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
