"""This process's control group, as far as it limits memory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryCgroup", "counter"]

# Where version 1 has no limit, it names the largest number of whole pages.
_UNLIMITED_NBYTES = 1 << 62


@dataclass(frozen=True)
class MemoryCgroup:
    """A control group of either version.

    Attributes:
        version: 1 or 2.
        directory: Where the kernel shows it.
        root: The same of the outermost group that is visible here.
    """

    version: int
    directory: Path
    root: Path

    @staticmethod
    def of_this_process(proc: Path = Path("/proc")) -> MemoryCgroup | None:
        """The one that accounts for this process's memory; None if none does."""
        for version, path in _groups(proc):
            for inner, mount_point in _mounts(proc, version):
                # In a container the mount begins at the container's own group.
                below = path.removeprefix(inner.rstrip("/")).lstrip("/")
                group = MemoryCgroup(version, mount_point / below, mount_point)
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
        for directory in (self.directory, *self.directory.parents):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number.
                limits.append(int((directory / name).read_text()))
            if directory == self.root:
                break
        least = min(limits, default=_UNLIMITED_NBYTES)
        return least if least < _UNLIMITED_NBYTES else None


def counter(file: Path, word: str) -> int | None:
    """The number after that word, at the beginning of a line; None if unknown."""
    try:
        found = re.search(rf"^{word} (\d+)$", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def _groups(proc: Path) -> Iterator[tuple[int, str]]:
    """Groups of this process which may account for memory: version and path."""
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                yield 1, path
            elif not controllers:
                yield 2, path


def _mounts(proc: Path, version: int) -> Iterator[tuple[str, Path]]:
    """Where groups are shown: the outermost group's path, and the directory."""
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            inner, mount_point = before.split()[3:5]
            kind, _, options = after.split()[:3]
            if kind == ("cgroup" if version == 1 else "cgroup2") and (
                version == 2 or "memory" in options.split(",")
            ):
                yield inner, Path(mount_point)
