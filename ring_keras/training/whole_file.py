"""Files that are there whole, or not at all, whatever dies."""

import contextlib
import os
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, content: bytes | memoryview, *, unfinished: str) -> None:
    """Writes a file, or replaces it, so that it outlives the loss of power.

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
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
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
