"""The job that a host is checked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULT_RANKS", "JobShape"]

DEFAULT_RANKS = 2
"""Of this host, where nobody says how many."""


@dataclass(frozen=True)
class JobShape:
    """What a host would have to bear.

    Attributes:
        local_size: Ranks on this host.
        size: Ranks of all hosts.
        hosts: How many hosts there are.
        holds_store: Whether ringrun, and with it the job's store, runs here.
        bind_to_cores: Whether each rank keeps to cores of its own.
        directory: Where ranks start.
    """

    local_size: int
    size: int
    hosts: int
    holds_store: bool
    bind_to_cores: bool
    directory: str

    @property
    def remote_size(self) -> int:
        """Ranks on the other hosts."""
        return self.size - self.local_size

    def as_json(self) -> dict[str, Any]:
        """To send to another host."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> JobShape:
        """What `as_json` gave.

        Raises:
            TypeError: If it is something else.
        """
        return JobShape(**value)
