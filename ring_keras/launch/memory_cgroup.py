"""This process's control group, as far as it limits memory."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from ring_keras.launch.control_group import ControlGroup, groups_of_this_process

__all__ = ["MemoryCgroup", "counter"]

# Where version 1 has no limit, it names the largest number of whole pages.
_UNLIMITED_NBYTES = 1 << 62


@dataclass(frozen=True)
class MemoryCgroup(ControlGroup):
    """A control group that accounts for memory."""

    @staticmethod
    def of_this_process(proc: Path = Path("/proc")) -> MemoryCgroup | None:
        """The one that accounts for this process's memory; None if none does."""
        for found in groups_of_this_process("memory", proc):
            group = MemoryCgroup(found.version, found.directory, found.root)
            if counter(*group.oom_counter) is not None:
                return group
        return None

    @property
    def oom_counter(self) -> tuple[Path, str]:
        """The file that counts processes which the OOM killer chose, and the word."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return self.directory / name, "oom_kill"

    def limit_nbytes(self) -> int | None:
        """The least limit of it and of the groups around it; None if there is none."""
        name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        limits = []
        for path in self.files(name):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number.
                limits.append(int(path.read_text()))
        least = min(limits, default=_UNLIMITED_NBYTES)
        return least if least < _UNLIMITED_NBYTES else None


def counter(file: Path, word: str) -> int | None:
    """The number after that word, at the beginning of a line; None if unknown."""
    try:
        found = re.search(rf"^{word} (\d+)$", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
