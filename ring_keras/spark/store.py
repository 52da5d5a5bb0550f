"""Where an estimator's runs lie, for Spark and for Python."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from pyarrow import ArrowInvalid, fs

__all__ = ["Store", "StoreDirectory"]


@dataclass(frozen=True)
class Store:
    """A directory that the driver and all executors reach under the same name.

    Attributes:
        spark_prefix: What Spark calls it.
        prefix: What Python calls it: a path, or a URL of a file system that pyarrow or
            `fsspec` has.
    """

    spark_prefix: str
    prefix: str

    @classmethod
    def create(cls, prefix_path: str | Path) -> Store:
        """The one with this path or URL; nothing is looked at yet.

        Args:
            prefix_path: A path such as "/shared/runs", or a URL of "file", "dbfs",
                "hdfs", "s3", "s3a", "gs", "abfs" or what else both Spark and pyarrow
                or `fsspec` know.

        Raises:
            ValueError: If it is neither.
        """
        path = str(prefix_path).rstrip("/")
        if not path:
            raise ValueError(
                "A store needs a directory of its own, such as '/shared/runs'. "
                f"Received: prefix_path={str(prefix_path)!r}"
            )
        if any(mark in path for mark in "?#*["):
            raise ValueError(
                "A store's path has none of ? # * [, which would be a pattern, or "
                "options of a file system: those belong into the environment. "
                f"Received: prefix_path={path!r}"
            )
        scheme, colon, rest = path.partition(":")
        if scheme == "dbfs" and colon:
            return cls(path, "/dbfs/" + rest.lstrip("/"))
        if path.startswith("/dbfs/"):
            return cls("dbfs:/" + path.removeprefix("/dbfs/"), path)
        if "://" not in path or scheme == "file":
            local = Path("/" + rest.lstrip("/") if scheme == "file" else path)
            # Hadoop's paths look like URLs, and have nothing quoted.
            return cls(f"file://{local.absolute()}", str(local.absolute()))
        if scheme in ("s3a", "s3n"):  # Names that Hadoop alone has.
            return cls(path, "s3:" + rest)
        return cls(path, path)

    def spark_path(self, name: str) -> str:
        """Spark's path of what has this name below the prefix."""
        return f"{self.spark_prefix}/{name}"

    def file_system(self) -> fs.FileSystem:
        """As pyarrow has it."""
        return self._system()[0]

    def path(self, name: str) -> str:
        """The path, in that, of what has this name."""
        return f"{self._system()[1]}/{name}"

    def files(self, name: str) -> list[str]:
        """The names of all files below a directory, sorted; none if it is not there."""
        system, root = self._system()
        selector = fs.FileSelector(
            self.path(name), allow_not_found=True, recursive=True
        )
        return sorted(
            str(PurePosixPath(info.path).relative_to(PurePosixPath(root)))
            for info in system.get_file_info(selector)
            if info.type == fs.FileType.File
        )

    def open(self, name: str) -> Any:
        """A file to read from, with random access.

        Raises:
            OSError: If it cannot be read.
        """
        return self.file_system().open_input_file(self.path(name))

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Makes a file, or replaces it.

        Raises:
            OSError: If it cannot be written.
        """
        system, path = self.file_system(), self.path(name)
        system.create_dir(str(PurePosixPath(path).parent), recursive=True)
        with system.open_output_stream(path) as stream:
            stream.write(content)

    def remove(self, name: str) -> None:
        """Removes a file, or a directory with all that is in it, if it is there."""
        system, path = self.file_system(), self.path(name)
        (info,) = system.get_file_info([path])
        if info.type == fs.FileType.File:
            system.delete_file(path)
        elif info.type == fs.FileType.Directory:
            system.delete_dir(path)

    def _system(self) -> tuple[fs.FileSystem, str]:
        return _file_system_at(self.prefix)


@dataclass(frozen=True)
class StoreDirectory:
    """A directory of a store's, for backups; see `callbacks.backup_directory`."""

    store: Store
    name: str

    def path(self, name: str) -> str:
        """For messages."""
        return f"{self.store.prefix}/{self.name}/{name}"

    def names(self) -> list[str]:
        """Of its files."""
        return [PurePosixPath(name).name for name in self.store.files(self.name)]

    def read(self, name: str) -> bytes:
        """A small file."""
        with self.store.open(f"{self.name}/{name}") as file:
            content: bytes = file.read()
        return content

    @contextlib.contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """A file of this host with the same contents."""
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, name)
            path.write_bytes(self.read(name))
            yield path

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Makes a file. One that is not whole is found by its checksum."""
        self.store.write(f"{self.name}/{name}", content)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        self.store.remove(f"{self.name}/{name}")

    def free_space(self) -> str:
        """In words."""
        return "how many are free there is not known"


@functools.lru_cache
def _file_system_at(prefix: str) -> tuple[fs.FileSystem, str]:
    """The file system, and the path in it."""
    if "://" not in prefix:
        return fs.LocalFileSystem(), prefix
    with contextlib.suppress(ArrowInvalid):  # It does not know the scheme.
        system, path = fs.FileSystem.from_uri(quote(prefix, safe=":/@"))
        return system, path.rstrip("/")
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ValueError(
            f"pyarrow has no file system for {prefix!r}. Others need the package "
            "fsspec, and that for the protocol, on the driver and on executors."
        ) from None
    system, path = url_to_fs(prefix)
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path.rstrip("/")
