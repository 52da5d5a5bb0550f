"""This process's place in the job."""

from ring_keras import _native
from ring_keras.errors import NotInitializedError

__all__ = [
    "cross_rank",
    "cross_size",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "size",
]


def is_initialized() -> bool:
    """Whether `init()` has run, and `shutdown()` has not since."""
    return _native.is_initialized()


def rank() -> int:
    """This process's number in the job, from 0.

    Raises:
        NotInitializedError: If `init()` has not run; so do the functions below.
    """
    return _topology("rank")[0]


def size() -> int:
    """Number of processes in the job."""
    return _topology("size")[1]


def local_rank() -> int:
    """This process's number among those on its host, from 0."""
    return _topology("local_rank")[2]


def local_size() -> int:
    """Number of the job's processes on this host."""
    return _topology("local_size")[3]


def cross_rank() -> int:
    """This host's number among those with a process of this local rank."""
    return _topology("cross_rank")[4]


def cross_size() -> int:
    """Number of hosts with a process of this local rank."""
    return _topology("cross_size")[5]


def _topology(function: str) -> tuple[int, int, int, int, int, int]:
    if not _native.is_initialized():
        raise NotInitializedError(
            f"ring_keras.{function}() has no answer yet: call ring_keras.init() "
            "once, at the start of the script."
        )
    return _native.topology()
