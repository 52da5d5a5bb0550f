"""The control groups that limit this process, of either version."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ControlGroup",
    "MemoryCgroup",
    "counter",
    "cpu_limit",
    "groups_of_this_process",
    "own_group",
    "usable_cores",
]

_PROC = Path("/proc")
_CPU_LIMITS = {1: "cpu.cfs_quota_us", 2: "cpu.max"}
# Where version 1 has no limit, it names the largest number of whole pages.
_UNLIMITED_NBYTES = 1 << 62


@dataclass(frozen=True)
class ControlGroup:
    """A control group of either version.

    Attributes:
        version: 1 or 2.
        directory: Where the kernel shows it.
        root: The same of the outermost group that is visible here.
    """

    version: int
    directory: Path
    root: Path

    def files(self, name: str) -> Iterator[Path]:
        """That file of the group and of those around it, from the inside out."""
        for directory in (self.directory, *self.directory.parents):
            if (directory / name).is_file():
                yield directory / name
            if directory == self.root:
                break


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


def usable_cores(proc: Path = _PROC) -> int:
    """How many threads that compute have a core each."""
    allowed = len(os.sched_getaffinity(0))
    limit = cpu_limit(proc)
    # What a container may use of its host's cores is seldom a matter of affinity.
    return allowed if limit is None else min(allowed, max(1, math.ceil(limit[0])))


def cpu_limit(proc: Path = _PROC) -> tuple[float, Path] | None:
    """How many cores' time this process's groups give, and which file says so.

    None: as much as there is.
    """
    group = own_group("cpu", _CPU_LIMITS, proc)
    if group is None:
        return None
    limits = []
    for path in group.files(_CPU_LIMITS[group.version]):
        with contextlib.suppress(OSError, ValueError, IndexError, ZeroDivisionError):
            words = path.read_text().split()
            if group.version == 1:
                words.append((path.parent / "cpu.cfs_period_us").read_text())
            if words[0] not in ("max", "-1"):
                limits.append((int(words[0]) / int(words[1]), path))
    return min(limits, key=lambda limit: limit[0], default=None)


def own_group(
    controller: str, file_names: Mapping[int, str], proc: Path = _PROC
) -> ControlGroup | None:
    """This process's, to which a controller applies; None if none does.

    Args:
        controller: Such as `pids`.
        file_names: By version, a file of the group, or of one around it, that shows
            that the controller is on.
        proc: Where the kernel tells of processes.
    """
    for group in groups_of_this_process(controller, proc):
        if any(True for _ in group.files(file_names[group.version])):
            return group
    return None


def groups_of_this_process(
    controller: str, proc: Path = _PROC
) -> Iterator[ControlGroup]:
    """Those to which a controller may apply."""
    for version, path in _groups(proc, controller):
        for inner, mount_point in _mounts(proc, version, controller):
            # In a container the mount begins at the container's own group.
            below = path.removeprefix(inner.rstrip("/")).lstrip("/")
            yield ControlGroup(version, mount_point / below, mount_point)


def _groups(proc: Path, controller: str) -> Iterator[tuple[int, str]]:
    """Version and path."""
    for line in _lines(proc / "self" / "cgroup"):
        with contextlib.suppress(ValueError):
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                yield 1, path
            elif not controllers:
                yield 2, path


def _mounts(proc: Path, version: int, controller: str) -> Iterator[tuple[str, Path]]:
    """Where groups are shown: the outermost group's path, and the directory."""
    for line in _lines(proc / "self" / "mountinfo"):
        with contextlib.suppress(ValueError):
            before, _, after = line.partition(" - ")
            # Between two spaces there may be nothing: a mount may have no source.
            inner, mount_point = map(_unescaped, before.split(" ")[3:5])
            kind, _, options = after.split(" ")[:3]
            if kind == ("cgroup" if version == 1 else "cgroup2") and (
                version == 2 or controller in options.split(",")
            ):
                yield inner, Path(mount_point)


def _lines(path: Path) -> list[str]:
    """Others' paths stand there, too, which are bytes: in any encoding, or in none."""
    try:
        text = os.fsdecode(path.read_bytes())
    except OSError:
        return []
    return text.removesuffix("\n").split("\n") if text else []


def _unescaped(field: str) -> str:
    """A space, which would end a field, is three octal digits, as are some more."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
