"""Memory without a name that processes of one host map, and nobody can write to."""

import contextlib
import fcntl
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["SharedMemory"]

_NAME = "ring_keras_array"
_OWN_FILES = Path("/proc/self/fd")
# Nobody can write to it, nor cut it short, which would end its readers.
_SEALS = (
    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
)


class SharedMemory(mmap.mmap):
    """A file in memory that this process maps; it goes with the last one that does."""

    name: str
    """As the system calls it; no two have the same."""

    @classmethod
    def create(cls, key: str, write: Callable[[int], None]) -> "SharedMemory":
        """Makes a file that never changes again.

        Args:
            key: What `find_on_host` finds it by; without spaces.
            write: Writes all of its content to a descriptor.

        Raises:
            OSError: If memory does not suffice, as far as the system says so.
        """
        name = f"{_NAME} {key} {secrets.token_hex(8)}"
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            write(descriptor)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            return cls._open(_OWN_FILES / str(descriptor))
        finally:
            os.close(descriptor)

    @classmethod
    def attach(cls, place: list[Any]) -> "SharedMemory":
        """Maps what has this `place` in another process.

        Raises:
            OSError: If this process cannot open it.
        """
        pid, descriptor, name = place
        path = Path(f"/proc/{pid}/fd/{descriptor}")
        memory = cls._open(path)
        if memory.name != name:  # Among the processes seen here, that is another one.
            raise FileNotFoundError(f"{path} is another file here")
        return memory

    @classmethod
    def find_on_host(cls, key: str) -> "SharedMemory | None":
        """Maps one that was made with this key, if a process of this host has it."""
        begin = f"/memfd:{_NAME} {key} "
        for process in Path("/proc").glob("[0-9]*"):
            for path, name in _files_of(process):
                if name.startswith(begin):
                    with contextlib.suppress(OSError):  # It is gone, or not ready.
                        return cls._open(path)
        return None

    @classmethod
    def _open(cls, path: Path) -> "SharedMemory":
        # With a descriptor that could write, older kernels do not map what is sealed.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise FileNotFoundError(f"{path} has not all of its content")
            memory = cls(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)
            memory.name = str((_OWN_FILES / str(descriptor)).readlink())
        finally:
            os.close(descriptor)
        memory.madvise(mmap.MADV_DONTDUMP)
        return memory

    @property
    def place(self) -> list[Any]:
        """Where other processes of this host find it: plain values."""
        # A mapping has a descriptor of its own, and does not say which.
        files = _files_of(_OWN_FILES.parent)
        descriptor = next(int(path.name) for path, name in files if name == self.name)
        return [os.getpid(), descriptor, self.name]


def _files_of(process: Path) -> Iterator[tuple[Path, str]]:
    """What one has open, as far as this one may see it: paths, and names."""
    with contextlib.suppress(OSError):
        for path in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield path, str(path.readlink())
