"""One pass over messages of Kafka: which there are, and which a step trains on."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ring_keras.training.whole_file import write_whole

__all__ = ["KafkaPass", "Piece", "read_pass", "write_pass"]


class Piece(NamedTuple):
    """Offsets of a partition, from `first` to before `end`."""

    topic: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        offsets = f"offsets {self.first} to {self.end - 1}"
        return f"{offsets} of partition {self.partition} of {self.topic!r}"


@dataclasses.dataclass(frozen=True)
class KafkaPass:
    """What the file has that `shard_kafka` is given.

    All offsets have one order, that of the pieces. It is cut into as many windows as
    all ranks have steps, of sizes that differ by one at most; a rank has those that
    follow each other.

    Attributes:
        topics: Sorted.
        ranks: How many share the messages.
        batch_size: The most offsets of a window.
        after: The file that this one follows, as seen from it; None if it follows none.
        offsets: Of each partition.
        first_step: How many steps the model had taken when `fit` first began with
            these messages; None before that.
        epochs: The most epochs that a `fit` with them was to have; 0 before that.

    Raises:
        ValueError: If they do not fit together.
    """

    topics: tuple[str, ...]
    ranks: int
    batch_size: int
    after: str | None
    offsets: tuple[Piece, ...]
    first_step: int | None = None
    epochs: int = 0

    def __post_init__(self) -> None:
        _require("topics", bool(self.topics))
        _require("ranks", _is_count(self.ranks, 1))
        _require("batch_size", _is_count(self.batch_size, 1))
        _require("after", self.after is None or isinstance(self.after, str))
        _require(
            "offsets",
            all(
                all(map(_is_count, piece[1:])) and piece.first <= piece.end
                for piece in self.offsets
            )
            and {piece.topic for piece in self.offsets} == set(self.topics)
            and len(self.ends()) == len(self.offsets),
        )
        begun = self.first_step is not None
        _require("first_step", not begun or _is_count(self.first_step))
        _require("epochs", _is_count(self.epochs) and begun == (self.epochs > 0))
        if self.total < self.ranks:
            raise ValueError(
                f"a message for each of {self.ranks} ranks is needed, and topics "
                f"{list(self.topics)} have {self.total}"
            )
        if self.total < self.ranks * self.steps:
            raise ValueError(
                f"{self.total} messages are not a multiple of {self.ranks} ranks, so "
                "batch_size=1 would leave a rank without one. Take a larger batch_size"
            )

    @property
    def total(self) -> int:
        """How many offsets there are."""
        return sum(piece.end - piece.first for piece in self.offsets)

    @property
    def steps(self) -> int:
        """Of a pass."""
        return -(-self.total // (self.ranks * self.batch_size))

    def offsets_of(self, rank: int, first: int, end: int) -> list[Piece]:
        """What a rank trains on in its steps from `first` to before `end`."""
        count = self.ranks * self.steps
        begin, stop = (
            self.total * (rank * self.steps + step) // count for step in (first, end)
        )
        found = []
        before = 0
        for piece in self.offsets:
            size = piece.end - piece.first
            begins, stops = (
                piece.first + min(max(place - before, 0), size)
                for place in (begin, stop)
            )
            if begins < stops:
                found.append(piece._replace(first=begins, end=stops))
            before += size
        return found

    def ends(self) -> dict[tuple[str, int], int]:
        """By topic and partition, the first offset that is of a later pass."""
        return {(piece.topic, piece.partition): piece.end for piece in self.offsets}

    def encode(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def decode(cls, text: str) -> "KafkaPass":
        """The one that was encoded.

        Raises:
            ValueError: If none was.
        """
        found = json.loads(text)
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(found, Mapping) or set(found) != names:
            raise ValueError(f"it has not the fields {sorted(names)}")
        topics, offsets = found["topics"], found["offsets"]
        _require(
            "topics",
            isinstance(topics, list) and all(isinstance(t, str) for t in topics),
        )
        _require(
            "offsets",
            isinstance(offsets, list)
            and all(isinstance(piece, list) and len(piece) == 4 for piece in offsets),
        )
        pieces = tuple(Piece(*piece) for piece in offsets)
        return cls(**{**found, "topics": tuple(topics), "offsets": pieces})


def read_pass(path: str | os.PathLike[str]) -> KafkaPass:
    """What a file has.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is another one.
    """
    content = Path(path).read_bytes()
    try:
        return KafkaPass.decode(content.decode())
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} was not written by ring_keras.data.shard_kafka: {error}"
        ) from error


def write_pass(path: Path, kept: KafkaPass) -> None:
    """Writes the file, or replaces it.

    Raises:
        OSError: If it cannot be written.
    """
    content = kept.encode().encode()
    write_whole(path, content, unfinished=f"unfinished.{path.name}")


def _is_count(value: Any, least: int = 0) -> bool:
    return type(value) is int and value >= least


def _require(name: str, holds: bool) -> None:
    if not holds:
        raise ValueError(f"its {name!r} is nothing that would stand there")
