"""One membership of this process in a job."""

from __future__ import annotations

import socket
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ring_keras import _native
from ring_keras.errors import NotInitializedError
from ring_keras.job.event_book import EventBook

if TYPE_CHECKING:
    from ring_keras.config import Config
    from ring_keras.job.process_set import ProcessSet

__all__ = ["Job", "begin_job", "current_job", "end_job", "job_or_none"]


class Job:
    """What belongs to a membership: `init()` makes it, `shutdown()` ends it.

    Nothing that ranks have agreed on, measured or promised outlives it. Whatever
    is kept elsewhere, such as a traced graph, remembers the generation it is of.

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
        self.process_sets: dict[int, list[ProcessSet]] = {}
        """Those that were added, by number, with all objects that stand for one."""
        self.agreed_plans: defaultdict[int, int] = defaultdict(int)
        """By process set: on how many plans its ranks have agreed."""
        self.agreed_without_all: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        """By process set: plans that some ranks have agreed on while others were in
        join(), their numbers by their digests."""
        self.events = EventBook()
        """What has happened on this rank."""
        self.gathers_begun: defaultdict[int, int] = defaultdict(int)
        """By communicator: how many gatherings in the background have begun."""
        self.gathers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those whose threads run."""
        self.timeline: Any = None
        """What records a timeline, if one is being recorded; has `end()`."""
        self.reporter: Any = None
        """What tells the launcher how far this rank is, if it wants to know; has
        `end()`."""
        self.on_gpu = False
        """Whether gradients are in GPU memory, on every rank alike."""
        self.tuned_bucket_bytes: int | None = None
        self.data_orders: defaultdict[int, list[weakref.ref[Any]]] = defaultdict(list)
        """By process set: the orders of all data that it has split. Its ranks split
        data together, so the n-th of one rank is the n-th of another."""
        self.parts: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )
        """Datasets and arrays that are this rank's part of others, by `id()`."""
        self.has_padded_data = False
        """Whether data were made some of whose rows are padding."""
        self.has_joined_data = False
        """Whether data were made some of whose batches are empty."""
        self.joined_data: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )
        """Datasets that ask the other ranks for each batch whether there is one, by
        `id()`."""
        self.has_shared_file = False
        """Whether this rank has said that another one saves to the same path."""
        self.is_used = False
        """Whether the program has asked for more than `init()`: its rank, other ranks'
        data, process sets. Before that all ranks do the same, and know of no other."""
        self.others_train = False
        """Whether the others have long begun, and answer only what this rank asks once
        it is where they are."""

    @property
    def host(self) -> str:
        """The name of this rank's host, as others are told."""
        return self.config.host_name or socket.gethostname()


_current: Job | None = None


def begin_job(config: Config) -> Job:
    """Makes the object of a membership that the engine has begun."""
    global _current
    _current = Job(config)
    return _current


def end_job() -> None:
    """Forgets the membership; process sets can be added in another one."""
    global _current
    job, _current = _current, None
    if job is None:
        return
    for objects in job.process_sets.values():
        for process_set in objects:
            process_set.process_set_id = None


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
