"""One membership of this process in a job."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ring_keras import _native
from ring_keras.errors import NotInitializedError
from ring_keras.job.event_book import EventBook

if TYPE_CHECKING:
    from ring_keras.config import Config

__all__ = ["Job", "PerJob", "begin_job", "current_job", "end_job", "job_or_none"]

_Kept = TypeVar("_Kept")


class Job:
    """What belongs to a membership: `init()` makes it, `shutdown()` ends it.

    Nothing that ranks have agreed on, measured or promised outlives it. Whatever
    is kept elsewhere, such as a traced graph, remembers the generation it is of.
    What one file alone needs is a `PerJob` there.

    Args:
        config: What the environment said at `init()`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.generation = _native.generation()
        """Its number among the job's memberships, the same on every rank."""
        self.communicator_base = _native.communicator_base()
        """Makes the generation part of a communicator's number."""
        (
            self.rank,
            self.size,
            self.local_rank,
            self.local_size,
            self.cross_rank,
            self.cross_size,
        ) = _native.topology()
        self.local_sizes: tuple[int, ...] = (self.local_size,)
        """How many ranks there are on each rank's host, by rank."""
        self.events = EventBook()
        """What has happened on this rank."""
        self.on_gpu = False
        """Whether gradients are in GPU memory, on every rank alike."""
        self.tuned_bucket_bytes: int | None = None
        self.is_used = False
        """Whether the program has asked for more than `init()`: its rank, other ranks'
        data, process sets. Before that all ranks do the same, and know of no other."""
        self.others_train = False
        """Whether the others have long begun, and answer only what this rank asks once
        it is where they are."""
        self.has_failed_alone = False
        """Whether this rank has left a `fit` by an error that goes on without it."""
        self.kept: dict[PerJob[Any], Any] = {}
        """What other files keep of it; see `PerJob`."""

    @property
    def host(self) -> str:
        """The name of this rank's host, as others are told."""
        return self.config.host_name or socket.gethostname()


class PerJob(Generic[_Kept]):
    """What a part of the package keeps for as long as the job lasts.

    Args:
        make: Makes it, when somebody first asks for it in a job.
        end: Gets it at the job's end, if it was made.
    """

    def __init__(
        self,
        make: Callable[[], _Kept],
        end: Callable[[_Kept], None] | None = None,
    ) -> None:
        self._make = make
        self._end = end

    def of(self, job: Job) -> _Kept:
        """What is kept of that job."""
        try:
            kept: _Kept = job.kept[self]
        except KeyError:
            kept = job.kept.setdefault(self, self._make())
        return kept

    def put(self, job: Job, value: _Kept) -> None:
        """Keeps this instead."""
        job.kept[self] = value

    def end(self, job: Job) -> None:
        """The job is over."""
        if self._end is not None and self in job.kept:
            self._end(job.kept[self])


_current: Job | None = None


def begin_job(config: Config) -> Job:
    """Makes the object of a membership that the engine has begun."""
    global _current
    _current = Job(config)
    return _current


def end_job() -> None:
    """Forgets the membership, and all that was kept of it."""
    global _current
    job, _current = _current, None
    if job is None:
        return
    for one in list(job.kept):
        one.end(job)


def job_or_none() -> Job | None:
    """The membership there is."""
    return _current


def current_job() -> Job:
    """The membership there is.

    Raises:
        NotInitializedError: If `init()` has not run, or `shutdown()` has since.
    """
    if _current is None:
        raise NotInitializedError(
            "[RK101] ring_keras is not initialized. Call ring_keras.init() first."
        )
    return _current
