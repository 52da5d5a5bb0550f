"""Models that all ranks save to one path."""

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import keras
from absl import logging

from ring_keras.job.job import Job, PerJob, job_or_none

__all__ = ["Together", "is_told_of_files", "whole_save"]

is_told_of_files: PerJob[bool] = PerJob(bool)
"""Whether this rank has said that another one saves to the same path, or need not."""

_ONE_FILE = (".h5", ".hdf5", ".keras")
_COMMON_FILE = (
    "ring_keras: [RK653] "
    "rank %d has saved '%s' while another process saved it, too: the file is "
    "that of the last one. Save on one rank, by `if ring_keras.rank() == 0:`, "
    "or to a path for each. A keras.callbacks.ModelCheckpoint saves on one "
    "rank by itself where the optimizer is distributed."
)
_FILE_OF_ONE = (
    "ring_keras: [RK653] "
    "rank %d has saved '%s' while another process saved it, too, and each rank trains "
    "its own '%s' (local_layers): the file has that of the last one. Save to a path "
    "for each rank, with ring_keras.rank() in it."
)


Together: TypeAlias = contextlib.AbstractContextManager[Any]
"""What surrounds a save in which all ranks take part."""


def whole_save(
    save: Callable[..., Any],
    is_local_in: Callable[[keras.Model], Callable[[Any], bool]],
    together: Callable[[keras.Model, Any], Together | None] = lambda *_: None,
) -> Callable[..., Any]:
    """A method of `keras.Model` that puts a file in its place once it is whole.

    So ranks that save to one path at the same time leave the file of one of them, and
    not a mixture; the first two of a host say that there was another. That goes for
    single files by a path of the host, on any file system. The rest is as in Keras.

    Args:
        save: As Keras has it.
        is_local_in: Says of a model which of its weights each rank trains for itself.
        together: Of a model and a path: what surrounds the save, if each rank has a
            part of what is saved.
    """

    @functools.wraps(save)
    def saved(self: keras.Model, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        job = job_or_none()
        path = None if job is None or job.size == 1 else _file(filepath)
        overwrites = all([*args, *kwargs.values()])
        is_plain = len(args) <= 1 and kwargs.keys() <= {"overwrite"} and overwrites
        around = None if job is None else together(self, filepath)
        shares = around is not None
        with around or contextlib.nullcontext():
            if job is None or path is None or not is_plain:
                return save(self, filepath, *args, **kwargs)
            beside = path.with_name(f".{job.rank}-{os.getpid()}.{path.name}")
            result, is_shared = _put(
                beside, path, lambda: save(self, str(beside), *args, **kwargs)
            )
        local = next(filter(is_local_in(self), self.weights), None)
        if is_shared and not shares:
            _warn_once(job, _COMMON_FILE, job.rank, str(filepath))
        elif is_shared and local is not None:  # Else all ranks are meant to save it.
            name = getattr(local, "path", local.name)
            _warn_once(job, _FILE_OF_ONE, job.rank, str(filepath), name)
        return result

    return saved


def _put(beside: Path, path: Path, save: Callable[[], Any]) -> tuple[Any, bool]:
    """Puts what is saved to a file beside it in its place.

    Returns:
        What `save` returns, and whether another process has saved to the path, too.
    """
    before, began = _version(path), time.time()
    try:
        result = save()
        is_shared = _version(path) != before or _has_others(beside, path, began)
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    return result, is_shared


def _file(filepath: Any) -> Path | None:
    """Where one file is, or will be; None for all else that Keras saves to."""
    text = str(filepath)
    if "://" in text or not text.endswith(_ONE_FILE):
        return None
    path = Path(text).resolve()
    is_free = path.is_file() or not path.exists()
    return path if is_free and path.parent.is_dir() else None


def _version(path: Path) -> tuple[int, int] | None:
    """Another one once a file has been put, or written, there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _has_others(beside: Path, path: Path, began: float) -> bool:
    """Whether other processes have written to what they will put there, too."""
    is_theirs = re.compile(rf"\.\d+-\d+\.{re.escape(path.name)}").fullmatch
    for other in path.parent.iterdir():
        with contextlib.suppress(OSError):  # It is in its place by now.
            if other == beside or not is_theirs(other.name):
                continue
            if other.stat().st_mtime >= began:
                return True
    return False


def _warn_once(job: Job, message: str, *args: Any) -> None:
    # The first two of a host have seen each other.
    if job.local_rank <= 1 and not is_told_of_files.of(job):
        is_told_of_files.put(job, True)
        logging.warning(message, *args)
