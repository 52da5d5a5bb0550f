"""The control groups that limit this process, of either version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ControlGroup", "groups_of_this_process", "own_group"]


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


def own_group(controller: str, file_names: Mapping[int, str]) -> ControlGroup | None:
    """This process's, to which a controller applies; None if none does.

    Args:
        controller: Such as `pids`.
        file_names: By version, a file of the group, or of one around it, that shows
            that the controller is on.
    """
    for group in groups_of_this_process(controller):
        if any(True for _ in group.files(file_names[group.version])):
            return group
    return None


def groups_of_this_process(
    controller: str, proc: Path = Path("/proc")
) -> Iterator[ControlGroup]:
    """Those to which a controller may apply."""
    for version, path in _groups(proc, controller):
        for inner, mount_point in _mounts(proc, version, controller):
            # In a container the mount begins at the container's own group.
            below = path.removeprefix(inner.rstrip("/")).lstrip("/")
            yield ControlGroup(version, mount_point / below, mount_point)


def _groups(proc: Path, controller: str) -> Iterator[tuple[int, str]]:
    """Version and path."""
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                yield 1, path
            elif not controllers:
                yield 2, path


def _mounts(proc: Path, version: int, controller: str) -> Iterator[tuple[str, Path]]:
    """Where groups are shown: the outermost group's path, and the directory."""
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            inner, mount_point = before.split()[3:5]
            kind, _, options = after.split()[:3]
            if kind == ("cgroup" if version == 1 else "cgroup2") and (
                version == 2 or controller in options.split(",")
            ):
                yield inner, Path(mount_point)
