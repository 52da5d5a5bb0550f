"""Files at paths, at patterns, and below directories. Needs pyarrow."""

import fnmatch
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow.fs as pafs

from ring_keras.data.file_systems import file_system_of

__all__ = ["FoundFile", "find_files"]

_WILD = set("*?[")


@dataclass(frozen=True)
class FoundFile:
    """A file that can be opened.

    Attributes:
        system: A `pyarrow.fs.FileSystem`.
        path: There.
    """

    system: Any
    path: str


def find_files(paths: Sequence[str], filesystem: Any) -> list[FoundFile]:
    """Each file once, by whatever paths it is found, in the order of their names.

    Args:
        paths: See `ring_keras.data.shard_parquet`.
        filesystem: See `ring_keras.data.shard_parquet`.

    Raises:
        ValueError: If a pattern is none that is known here.
        OSError: If a directory cannot be read.
    """
    systems: list[Any] = []
    found: dict[tuple[int, str], FoundFile] = {}
    for pattern in paths:
        if "**" in pattern:
            raise ValueError(
                f"{pattern}: `**` is not known here, and a directory means all that is "
                "below it. Name the directory, or each of several."
            )
        system, path = _resolved(pattern, filesystem)
        if system not in systems:
            systems.append(system)
        is_local = isinstance(system, pafs.LocalFileSystem)
        for name in _names(system, path):
            whole = os.path.abspath(name) if is_local else name  # noqa: PTH100  Links stay.
            found.setdefault((systems.index(system), whole), FoundFile(system, name))
    return sorted(found.values(), key=lambda file: file.path)


def _names(system: Any, path: str) -> list[str]:
    kind = system.get_file_info(path).type
    if kind == pafs.FileType.File:
        return [path]
    parts = PurePosixPath(path).parts
    plain = len(parts)
    if kind == pafs.FileType.NotFound:
        plain = next((at for at, part in enumerate(parts) if _WILD & set(part)), plain)
    root = PurePosixPath(*parts[:plain])
    selector = pafs.FileSelector(str(root), allow_not_found=True, recursive=True)
    names = []
    for one in system.get_file_info(selector):
        inside = PurePosixPath(one.path).relative_to(root).parts
        is_hidden = any(part[0] in "_." for part in inside)
        if one.type != pafs.FileType.File or is_hidden:
            continue
        if _matches(inside, parts[plain:]):
            names.append(one.path)
    return names


def _matches(names: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    """Whether the patterns are of the file, or of a directory that it is below."""
    return len(names) >= len(patterns) and all(
        map(fnmatch.fnmatchcase, names, patterns)
    )


def _resolved(path: str, filesystem: Any) -> tuple[Any, str]:
    scheme, mark, _ = path.partition("://")
    if filesystem is None and not mark:
        return pafs.LocalFileSystem(), path
    if filesystem is None:
        filesystem, path = file_system_of(path)
        if scheme in ("file", "local"):
            return pafs.LocalFileSystem(), path
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem, path
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path
