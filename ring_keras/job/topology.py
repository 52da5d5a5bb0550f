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
    """Whether `init()` has run, and `shutdown()` has not since."""
    return job_or_none() is not None


def rank() -> int:
    """This process's number in the job, from 0.

    Raises:
        NotInitializedError: If `init()` has not run; so do the functions below.
    """
    return _job("rank").rank


def size() -> int:
    """Number of processes in the job."""
    return _job("size").size


def local_rank() -> int:
    """This process's number among those on its host, from 0."""
    return _job("local_rank").local_rank


def local_size() -> int:
    """Number of the job's processes on this host."""
    return _job("local_size").local_size


def cross_rank() -> int:
    """This host's number among those with a process of this local rank."""
    return _job("cross_rank").cross_rank


def cross_size() -> int:
    """Number of hosts with a process of this local rank."""
    return _job("cross_size").cross_size


def _job(function: str) -> Job:
    job = job_or_none()
    if job is None:
        raise NotInitializedError(
            "[RK101] "
            f"ring_keras.{function}() has no answer yet: call ring_keras.init() "
            "once, at the start of the script."
        )
    return job
