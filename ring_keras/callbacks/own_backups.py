"""Backups of ranks that train apart: each has a directory of its own."""

import contextlib
import re
from pathlib import Path

from ring_keras.callbacks.backup_directory import directory_at, is_remote
from ring_keras.callbacks.backup_files import BackupFiles

__all__ = ["clear_all_ranks", "clear_rank", "files_of_rank"]

_OF_RANK = re.compile(r"rank-\d+")


def files_of_rank(backup_dir: str, rank: int) -> BackupFiles:
    """What a rank has for itself, beside the backup of the rank that saves."""
    return BackupFiles(_inside(backup_dir, f"rank-{rank}"))


def clear_rank(backup_dir: str, rank: int) -> None:
    """Removes what a rank has.

    Raises:
        OSError: If it cannot be removed.
        RingKerasError: If there is no looking for it.
    """
    _clear(_inside(backup_dir, f"rank-{rank}"))


def clear_all_ranks(backup_dir: str) -> None:
    """The same of all ranks, also of those that are not there any more."""
    for name in directory_at(backup_dir).names():
        if _OF_RANK.fullmatch(name):
            _clear(_inside(backup_dir, name))


def _inside(backup_dir: str, name: str) -> str:
    return f"{backup_dir.rstrip('/')}/{name}"


def _clear(directory: str) -> None:
    BackupFiles(directory).clear()
    if not is_remote(directory):
        # Not there, or something else is in it.
        with contextlib.suppress(OSError):
            Path(directory).rmdir()
