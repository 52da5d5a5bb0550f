"""Where backups lie: in a directory of this host, or in an object store."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from ring_keras.errors import RingKerasError
from ring_keras.training.whole_file import write_whole

__all__ = ["Directory", "LocalDirectory", "directory_at", "is_remote"]


class Directory(Protocol):
    """Files, each of which appears under its name when it is whole and kept."""

    def path(self, name: str) -> str:
        """For messages."""

    def names(self) -> list[str]:
        """Of all files; none if there is no directory yet."""

    def read(self, name: str) -> bytes:
        """A small file.

        Raises:
            OSError: If it is not there, or damaged; else another one.
        """

    def local_copy(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """A file of this host with the same contents; see `read` for errors."""

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Makes a file, or replaces it as a whole.

        Raises:
            OSError: If it cannot be written; what was there still is.
        """

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""

    def free_space(self) -> str:
        """In words."""


def is_remote(directory: str | Path) -> bool:
    """Whether it is a URL, such as "s3://bucket/backup"."""
    return "://" in str(directory)


def directory_at(directory: str | Path) -> Directory:
    """The one with this path or URL."""
    if is_remote(directory):
        return _RemoteDirectory(str(directory))
    return LocalDirectory(Path(directory))


class LocalDirectory:
    """Made where there is none; several hosts may see it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str) -> str:
        """See `Directory`, like the rest."""
        return str(self.directory / name)

    def names(self) -> list[str]:
        """Of files and directories."""
        try:
            return [path.name for path in self.directory.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RingKerasError(
                f"[RK610] cannot look for backups in {self.directory}: {error.strerror}"
            ) from error

    def read(self, name: str) -> bytes:
        """Its contents."""
        return (self.directory / name).read_bytes()

    @contextlib.contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """The file itself."""
        yield self.directory / name

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Under another name, until it is on the disk."""
        unfinished = f"unfinished{''.join(Path(name).suffixes)}"
        write_whole(self.directory / name, content, unfinished=unfinished)

    def remove(self, name: str) -> None:
        """Removes it."""
        (self.directory / name).unlink(missing_ok=True)

    def free_space(self) -> str:
        """Of the file system."""
        for directory in (self.directory, *self.directory.parents):
            with contextlib.suppress(OSError):
                return f"{shutil.disk_usage(directory).free:,} bytes are free there"
        return "how many are free there is not known"


class _RemoteDirectory:
    """Objects, which appear whole or not at all, through `fsspec`.

    Args:
        url: With the protocol of one of its file systems.

    Raises:
        ValueError: If there is no such file system, its package is missing, or the URL
            asks for a version of an object.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ValueError(
                f"A directory such as {url!r} needs the package fsspec, and that for "
                "its protocol: s3fs, gcsfs."
            ) from None
        if any(mark in url for mark in "?#"):
            # gcsfs would write to it, and list another one.
            raise ValueError(
                f"{url!r} cannot be a directory: in an object store's URL, ? and # ask "
                "for a version."
            )
        self._url = url.rstrip("/")
        try:
            found: tuple[Any, str] = url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            raise ValueError(f"fsspec cannot open {url!r}: {error}") from error
        self._files, self._root = found

    def path(self, name: str) -> str:
        return f"{self._url}/{name}"

    def names(self) -> list[str]:
        with self._problems(RingKerasError):
            try:
                self._files.invalidate_cache()
                paths = self._files.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
            return [PurePosixPath(path).name for path in paths]

    def read(self, name: str) -> bytes:
        with self._problems(RingKerasError):
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
            return content

    @contextlib.contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / name
            with self._problems(RingKerasError):
                self._files.get_file(f"{self._root}/{name}", str(path))
            yield path

    def write(self, name: str, content: bytes | memoryview) -> None:
        try:
            with self._problems(OSError):
                self._files.pipe_file(f"{self._root}/{name}", bytes(content))
        except FileNotFoundError as error:
            raise OSError(f"there is no such bucket ({error})") from error

    def remove(self, name: str) -> None:
        with self._problems(OSError), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def free_space(self) -> str:
        return "how many are free there is not known"

    @contextlib.contextmanager
    def _problems(self, error_class: type[Exception]) -> Iterator[None]:
        """Other errors than that of an object that is not there are of this class.

        What cannot be reached is not damaged.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            raise error_class(
                f"{self._url}: {type(error).__name__}: {error}"
            ) from error
