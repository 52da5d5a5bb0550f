"""The card of a job: what another launcher needs to take the job over.

See docs/design/0054-a-launcher-that-can-be-lost.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ring_keras.launch.environment import write_private

__all__ = ["Card", "CardAgent", "CardError"]

_VERSION = 1


class CardError(Exception):
    """A file is no card, or cannot be one."""


@dataclass(frozen=True)
class CardAgent:
    """An agent of the job.

    Attributes:
        name: How messages call its host.
        listed_as: How the list of hosts, which may be asked again, calls it.
        slots: How many ranks it may have.
        address: Where it is to be called: host and port.
    """

    name: str
    listed_as: str
    slots: int
    address: str


@dataclass(frozen=True)
class Card:
    """All that is fixed when a job begins, and who keeps its ranks.

    Attributes:
        arguments: Of ringrun.
        directory: In which it was started.
        environment: In which it was started.
        path: Where the user wants to find it.
        has_heirs: Whether agents start another launcher by themselves.
        token: The job's secret, in hexadecimal digits.
        agents: In the order in which they have come.
        term: Of the launcher that has written it.
    """

    arguments: Sequence[str]
    directory: str
    environment: Mapping[str, str]
    path: str = ""
    has_heirs: bool = False
    token: str = ""
    agents: Sequence[CardAgent] = field(default_factory=tuple)
    term: int = 0

    def as_dict(self) -> dict[str, Any]:
        """What is written, and what agents are told."""
        return {"version": _VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Card:
        """The card that was made a dict.

        Raises:
            CardError: If it was none.
        """
        try:
            values = dict(found)
            version = values.pop("version")
            if version == _VERSION:
                agents = tuple(CardAgent(**agent) for agent in values.pop("agents"))
                return cls(**values, agents=agents)
        except (ValueError, TypeError, KeyError) as error:
            raise CardError(f"it is no card of a job: {error}") from None
        raise CardError(f"it is a card of version {version}, not {_VERSION}")

    def write(self, path: Path) -> None:
        """Writes it, in place of what was there, so that only the user can read it.

        Raises:
            CardError: If it cannot be written.
        """
        text = json.dumps(self.as_dict())
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with contextlib.suppress(FileNotFoundError):
                unfinished.unlink()
            write_private(unfinished, text)
            unfinished.rename(path)
        except OSError as error:
            raise CardError(f"{path}: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> Card:
        """The card in a file.

        Raises:
            CardError: If there is none, or others could have written it.
        """
        try:
            with path.open(encoding="ascii") as file:
                status = os.fstat(file.fileno())
                text = file.read()
        except OSError as error:
            raise CardError(
                f"{path}: {error.strerror}. A job that has ended well has no card"
            ) from None
        if status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
            raise CardError(
                f"{path}: others than you can read or write it, and it holds the job's "
                "secret: chmod 600"
            )
        try:
            return cls.from_dict(json.loads(text))
        except (CardError, ValueError) as error:
            raise CardError(f"{path}: {error}") from None
