"""Process sets: collectives among some of the ranks."""

from collections.abc import Iterable, Sequence
from itertools import chain

from ring_keras import _native
from ring_keras.errors import RingKerasError
from ring_keras.job.job import Job, PerJob, current_job, job_or_none

__all__ = [
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "has_peers",
    "remove_process_set",
]

_GLOBAL_ID = 0


class ProcessSet:
    """A subset of the job's ranks, which runs collectives among its members.

    A process set takes part in collectives once `add_process_set` or
    `init(process_sets=...)` has made its communicator on every rank of the job,
    members or not.

    Examples:
        >>> first = ring.add_process_set([0])
        >>> first.ranks, first.size()
        ([0], 1)
        >>> ring.remove_process_set(first)
        True

    Args:
        ranks: The members, as ranks of the whole job, in any order.
    """

    process_set_id: int | None
    """Number of its communicator; None while it has none."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks: list[int] | None = sorted(int(rank) for rank in ranks)
        self.process_set_id = None
        if len(set(self._ranks)) != len(self._ranks) or not self._ranks:
            raise ValueError(
                "`ranks` must name one or more different ranks. "
                f"Received: ranks={list(ranks)}"
            )

    @classmethod
    def _whole_job(cls) -> "ProcessSet":
        process_set = cls.__new__(cls)
        process_set._ranks = None
        process_set.process_set_id = _GLOBAL_ID
        return process_set

    @property
    def ranks(self) -> list[int]:
        """The members, as ranks of the whole job, ascending."""
        if self._ranks is None:
            job = current_job()
            job.is_used = True
            return list(range(job.size))
        return list(self._ranks)

    @property
    def added(self) -> bool:
        """Whether it has a communicator."""
        return self.process_set_id is not None

    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    def included(self) -> bool:
        """Whether this process is a member."""
        return current_job().rank in self.ranks

    def rank(self) -> int:
        """This process's position among the members.

        Raises:
            ValueError: If this process is not a member.
        """
        return self.position_of(current_job().rank)

    def position_of(self, rank: int) -> int:
        """Position among the members of a rank of the whole job."""
        ranks = self.ranks
        if rank not in ranks:
            raise ValueError(
                "[RK406] "
                f"rank {rank} is no member of the process set with ranks {ranks}."
            )
        return ranks.index(rank)

    def communicator_id(self) -> int:
        """Its `key`, as collectives take it.

        Raises:
            ValueError: If it has none.
            NotInitializedError: If `ring_keras.init()` has not run.
            RingKerasError: If the others train, and this rank is not where they are.
        """
        if current_job().others_train:
            raise RingKerasError(
                "[RK220] "
                "This process has joined ranks that are training. It cannot "
                "communicate with them before it enters their fit() with "
                "ring_keras.callbacks.Elastic, or their function of "
                "ring_keras.elastic.run. Between ring_keras.init() and there, only "
                "ring_keras.data.shard() may communicate. A new rank gets the others' "
                "variables by itself, and fit() takes validation_data."
            )
        return self.key()

    def key(self) -> int:
        """Number of its communicator.

        Other than `process_set_id` it is never that of another job: what is kept
        after `shutdown()`, in a graph for instance, is refused in the next job.

        Raises:
            ValueError: If it has none.
            NotInitializedError: If `ring_keras.init()` has not run.
        """
        if self.process_set_id is None:
            raise ValueError(
                "[RK406] "
                f"The process set with ranks {self.ranks} has no communicator. "
                "Call ring_keras.add_process_set() with it, on every rank of the "
                "job, before its first collective."
            )
        job = current_job()
        job.is_used = True
        return job.communicator_base + self.process_set_id

    def __repr__(self) -> str:
        if self._ranks is None:
            return "ProcessSet(all ranks)"
        return f"ProcessSet(ranks={self._ranks}, id={self.process_set_id})"


global_process_set = ProcessSet._whole_job()


def has_peers(process_set: ProcessSet) -> bool:
    """Whether this process is one of several members."""
    return process_set.size() > 1 and process_set.included()


def _forget(objects: Iterable[ProcessSet]) -> None:
    for process_set in objects:
        process_set.process_set_id = None


# By number, with all objects that stand for one. They can be added in another job.
_added: PerJob[dict[int, list[ProcessSet]]] = PerJob(
    dict, lambda added: _forget(chain.from_iterable(added.values()))
)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes the communicator of a process set.

    Collective over the whole job: every rank calls it, members or not, with
    the same ranks. All ranks make their calls of this function in the same order.

    Examples:
        >>> first = ring.add_process_set([0])
        >>> if first.included():  # Members alone call its collectives.
        ...     total = ring.allreduce(tf.ones(2), op=ring.Sum, process_set=first)
        >>> ring.remove_process_set(first)
        True

    Args:
        process_set: A `ProcessSet`, or the ranks of a new one.

    Returns:
        The process set, ready for collectives.

    Raises:
        ValueError: On every rank, if a rank is out of range or named twice, or a
            process set with the same ranks exists already.
        RankMismatchError: If the ranks give different ranks.
        NotInitializedError: If `ring_keras.init()` has not run.
    """
    given = process_set.ranks if isinstance(process_set, ProcessSet) else process_set
    ranks = sorted(int(rank) for rank in given)
    # Whatever is wrong with them, it is found out together: no rank may return
    # before the others know.
    number = _native.add_communicator(ranks)
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(ranks)
    process_set.process_set_id = number
    _added.of(current_job())[number] = [process_set]
    return process_set


def add_missing_process_sets(
    process_sets: Sequence[ProcessSet | Sequence[int]],
) -> None:
    """Adds those whose ranks are in no process set yet; collective for these."""
    for process_set in process_sets:
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        if process_set.added:
            continue
        for number, objects in _added.of(current_job()).items():
            if objects[0].ranks == process_set.ranks:
                process_set.process_set_id = number
                objects.append(process_set)
                break
        else:
            add_process_set(process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets the communicator of a process set; collective over the whole job.

    Examples:
        >>> first = ring.add_process_set([0])
        >>> ring.remove_process_set(first)
        True
        >>> first.added
        False

    Args:
        process_set: One that has been added; the same on every rank.

    Returns:
        Whether there was one to forget. The global process set stays.

    Raises:
        RankMismatchError: If the ranks name different process sets.
    """
    job = job_or_none()
    if job is None:
        return False
    number = process_set.process_set_id or _GLOBAL_ID
    # Also where there is nothing to forget: other ranks may see that differently.
    try:
        _native.remove_communicator(number)
    except ValueError:  # On every rank, as they have agreed on the number.
        return False
    _forget(_added.of(job).pop(number))
    return True


def find_process_set(process_set_id: int) -> ProcessSet:
    """The process set whose communicator has that number.

    Raises:
        ValueError: If there is none.
        NotInitializedError: If `ring_keras.init()` has not run.
    """
    if process_set_id == _GLOBAL_ID:
        return global_process_set
    added = _added.of(current_job())
    if process_set_id in added:
        return added[process_set_id][0]
    known = [global_process_set, *(objects[0] for objects in added.values())]
    raise ValueError(
        "[RK406] "
        "`process_set_id` must be that of a process set that has been added: "
        f"{known}. Received: process_set_id={process_set_id}"
    )


def has_process_sets(job: Job) -> bool:
    """Whether some were added, and not removed since."""
    return bool(_added.of(job))


def generation() -> int:
    """The number of this process's membership in its job.

    What ranks have agreed on holds only in the same one. -1 outside of any.
    """
    job = job_or_none()
    return -1 if job is None else job.generation
