"""What else of the environment matters: not variables of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = [
    "cache_directory",
    "inherited_environment",
    "replace_environment",
    "threads_of_rank",
]


def cache_directory() -> Path | None:
    """Where ring_keras keeps what it can find out again; None if there is no home.

    The directory need not exist.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification wants relative paths to be ignored.
    if Path(base).is_absolute():
        return Path(base) / "ring_keras"
    try:
        return Path.home() / ".cache" / "ring_keras"
    except RuntimeError:
        return None


def inherited_environment() -> dict[str, str]:
    """A copy of this process's environment, for processes it starts."""
    return dict(os.environ)


def replace_environment(environment: Mapping[str, str]) -> None:
    """Gives this process another one, as if it had been started in that."""
    os.environ.clear()
    os.environ.update(environment)


def threads_of_rank() -> int | None:
    """How many threads a rank may compute with, as ringrun has divided the cores.

    None if it has not, or if the user has said so by OMP_NUM_THREADS, which frameworks
    read themselves.
    """
    threads = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    if "OMP_NUM_THREADS" in os.environ or not threads.isdecimal():
        return None
    return int(threads) or None
