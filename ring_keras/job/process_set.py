"""Process sets: collectives among some of the ranks."""

from collections.abc import Sequence

from ring_keras import _native

__all__ = [
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
]

_GLOBAL_ID = 0
_added: list["ProcessSet"] = []
_jobs_left = 0


class ProcessSet:
    """Some of the job's ranks, to run collectives among themselves.

    A process set takes part in collectives once `add_process_set` or
    `init(process_sets=...)` has made its communicator on every rank of the job,
    members or not.

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
            return _native.communicator_ranks(_GLOBAL_ID)
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
        return _native.topology()[0] in self.ranks

    def rank(self) -> int:
        """This process's position among the members.

        Raises:
            ValueError: If this process is not a member.
        """
        return self.position_of(_native.topology()[0])

    def position_of(self, rank: int) -> int:
        """Position among the members of a rank of the whole job."""
        ranks = self.ranks
        if rank not in ranks:
            raise ValueError(
                f"rank {rank} is no member of the process set with ranks {ranks}."
            )
        return ranks.index(rank)

    def communicator_id(self) -> int:
        """Number of its communicator.

        Raises:
            ValueError: If it has none.
        """
        if self.process_set_id is None:
            raise ValueError(
                f"The process set with ranks {self.ranks} has no communicator. "
                "Call ring_keras.add_process_set() with it, on every rank of the "
                "job, before its first collective."
            )
        return self.process_set_id

    def __repr__(self) -> str:
        if self._ranks is None:
            return "ProcessSet(all ranks)"
        return f"ProcessSet(ranks={self._ranks}, id={self.process_set_id})"


global_process_set = ProcessSet._whole_job()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes the communicator of a process set.

    Collective over the whole job: every rank calls it, members or not, with
    the same ranks, in the same order as other calls of this function.

    Args:
        process_set: A `ProcessSet`, or the ranks of a new one.

    Returns:
        The process set, ready for collectives.

    Raises:
        ValueError: If a rank is out of range, or a process set with the same
            ranks exists already.
        NotInitializedError: If `ring_keras.init()` has not run.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.added:
        raise ValueError(f"{process_set} has been added already.")
    process_set.process_set_id = _native.add_communicator(process_set.ranks)
    _added.append(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets the communicator of a process set; collective over the whole job.

    Returns:
        Whether there was one to forget. The global process set stays.
    """
    if process_set.process_set_id in (None, _GLOBAL_ID):
        return False
    _native.remove_communicator(process_set.communicator_id())
    process_set.process_set_id = None
    _added.remove(process_set)
    return True


def find_process_set(process_set_id: int) -> ProcessSet:
    """The process set whose communicator has that number.

    Raises:
        ValueError: If there is none.
    """
    for process_set in (global_process_set, *_added):
        if process_set.process_set_id == process_set_id:
            return process_set
    known = [global_process_set, *_added]
    raise ValueError(
        "`process_set_id` must be that of a process set that has been added: "
        f"{known}. Received: process_set_id={process_set_id}"
    )


def forget_process_sets() -> None:
    """Marks every process set as having no communicator, as after shutdown."""
    global _jobs_left
    _jobs_left += 1
    for process_set in _added:
        process_set.process_set_id = None
    _added.clear()


def job_number() -> int:
    """Tells the jobs apart that this process joins one after the other.

    What ranks have agreed on holds only among those of the same job.
    """
    return _jobs_left
