"""This process's place in the job."""

from ring_keras.errors import NotInitializedError
from ring_keras.job.job import Job, job_or_none

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
    """Whether `init()` has run, and `shutdown()` has not since.

    Examples:
        >>> ring.is_initialized()
        True
    """
    return job_or_none() is not None


def rank() -> int:
    """This process's number in the job, from 0.

    Examples:
        >>> ring.rank()
        0

    Raises:
        NotInitializedError: If `init()` has not run; so do the functions below.
    """
    return _job("rank").rank


def size() -> int:
    """Number of processes in the job.

    Examples:
        >>> ring.size()
        2
    """
    return _job("size").size


def local_rank() -> int:
    """This process's number among those on its host, from 0.

    Examples:
        >>> ring.local_rank()
        0
    """
    return _job("local_rank").local_rank


def local_size() -> int:
    """Number of the job's processes on this host.

    Examples:
        >>> ring.local_size()
        2
    """
    return _job("local_size").local_size


def cross_rank() -> int:
    """This host's number among those with a process of this local rank.

    Examples:
        >>> ring.cross_rank()
        0
    """
    return _job("cross_rank").cross_rank


def cross_size() -> int:
    """Number of hosts with a process of this local rank.

    Examples:
        Both ranks are on one host:

        >>> ring.cross_size()
        1
    """
    return _job("cross_size").cross_size


def _job(function: str) -> Job:
    job = job_or_none()
    if job is None:
        raise NotInitializedError(
            "[RK101] "
            f"ring_keras.{function}() has no answer yet: call ring_keras.init() "
            "once, at the start of the script."
        )
    job.is_used = True
    return job
