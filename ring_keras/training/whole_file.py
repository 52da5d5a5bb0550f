"""Files that are there whole, or not at all, whatever dies."""

import contextlib
import fcntl
import mmap
import os
from pathlib import Path

import numpy as np

__all__ = ["write_whole"]

# Less goes through the page cache.
_LEAST_DIRECT_NBYTES = 1 << 20
# A process that is killed ends when the call that it is in has been done.
_NBYTES_PER_CALL = 16 << 20


def write_whole(path: Path, content: bytes | memoryview, *, unfinished: str) -> None:
    """Writes a file, or replaces it, so that it outlives the loss of power.

    Large contents go past the page cache, if they begin at a page of memory and the
    file system can do it.

    Args:
        path: Its directory is made if there is none.
        content: Of the file.
        unfinished: Its name beside `path` until it is on the disk.

    Raises:
        OSError: If it cannot be written. What was there before still is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(unfinished)
    try:
        with beside.open("wb", buffering=0) as file:
            if len(content):
                _write(file.fileno(), memoryview(content).cast("B"))
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: memoryview) -> None:
    """All of it: one call may write less than it is given."""
    done = _write_directly(descriptor, content)
    while done < len(content):
        done += os.write(descriptor, content[done:])


def _write_directly(descriptor: int, content: memoryview) -> int:
    """Writes whole pages from memory to the disk, past the page cache (`O_DIRECT`).

    That takes next to no processor time, and pushes nothing out of the page cache.

    Returns:
        How many bytes it has written from the beginning. The rest, which may be all,
        is left to ordinary writes, and so are errors that they do not have.
    """
    end = len(content) // mmap.PAGESIZE * mmap.PAGESIZE
    if end < _LEAST_DIRECT_NBYTES or _address(content) % mmap.PAGESIZE:
        return 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    done = 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        # What comes after a short write may not begin at a page any more.
        while done < end and done % mmap.PAGESIZE == 0:
            piece = content[done : min(done + _NBYTES_PER_CALL, end)]
            done += os.write(descriptor, piece)
    except OSError:
        pass  # If it is no refusal of O_DIRECT, the next write has it, too.
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return done


def _address(content: memoryview) -> int:
    return np.frombuffer(content, np.uint8).ctypes.data
