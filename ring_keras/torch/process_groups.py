"""Groups of torch's ranks as communicators of the engine."""

from __future__ import annotations

import contextlib
import importlib
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch.distributed

from ring_keras import _native
from ring_keras._causes import in_one_line
from ring_keras.config import Config
from ring_keras.errors import RingKerasError
from ring_keras.job.gathering import name_of_first
from ring_keras.job.job import PerJob, current_job
from ring_keras.job.topology import is_initialized
from ring_keras.lifecycle.membership import init
from ring_keras.values.objects import allgather_object
from ring_keras.values.refusals import refusals_told

__all__ = ["new_backend", "require_same_ranks"]


class _Groups:
    """Of one job.

    Attributes:
        default: What no other default group has, in any life of these processes: torch
            counts groups anew with each, maybe in a store that had them before.
        made: How many groups of the same ranks there have been in it, this rank among
            them. All of these have made as many.
        pairs: The first number of the communicators by which two ranks send to each
            other while there is that default group. There is one for each rank of the
            job. 0 before the first default group by the back end ring.
        free: No group of this rank has had this number, or a greater one.
    """

    def __init__(self) -> None:
        self.default = "none"
        self.made: Counter[tuple[int, ...]] = Counter()
        self.pairs = 0
        self.free: int = _native.first_of_members()


# What the ranks of a default group tell each other first, and members of another one.
_DEFAULT = "default"
_FREE = "free"

_groups: PerJob[_Groups] = PerJob(_Groups, lambda _: None)


def new_backend(options: Any, pg_options: Any) -> Any:
    """Torch calls it on each member of a new group.

    Args:
        options: Of c10d: the members' store, this one's rank in the group, its size,
            time-out and ranks.
        pg_options: Of other back ends; this one has none.

    Raises:
        ValueError: If there are `pg_options`.
        RingKerasError: If torch and `ring_keras.init()` number the ranks differently.
        ImportError: If there is no library for this torch.
    """
    if not is_initialized():
        init()
    ranks = list(options.global_ranks_in_group)
    if ranks:
        members = _StoreOfGroup(options, ranks)
        with members.told():
            library = _library(pg_options)
            require_same_ranks(
                torch.distributed.get_rank(), torch.distributed.get_world_size()
            )
        communicator = _join(members, ranks)
        prefix = members.prefix
    else:
        with default_group_told():
            library = _library(pg_options)
            require_same_ranks(options.group_rank, options.group_size)
        everyone = _Everyone()
        groups = _groups.of(current_job())
        groups.default = everyone.gathered(_DEFAULT, secrets.token_hex(8))[0]
        groups.made.clear()
        ranks = list(range(options.group_size))
        communicator = _join(everyone, ranks)
        groups.pairs = groups.free
        groups.free += len(ranks)
        prefix = f"ring_keras/{groups.default}"
    base = _native.communicator_base()
    pairs = _groups.of(current_job()).pairs
    return library.new_backend(
        options.group_rank,
        ranks,
        base + communicator,
        base + pairs if pairs else 0,
        options.store,
        f"{prefix}/monitored_barrier",
        options.timeout.total_seconds(),
        Config.from_environment().collective_timeout_s,
    )


def default_group_told() -> contextlib.AbstractContextManager[None]:
    """In it this rank may fail on its way to the first meeting of the default group."""
    return refusals_told(name_of_first(_name_of(_DEFAULT)))


def _library(pg_options: Any) -> Any:
    if pg_options is not None:
        raise ValueError(f"the back end ring takes no pg_options, got {pg_options!r}")
    major, minor = torch.__version__.split(".")[:2]
    name = f"ring_keras._torch_{major}_{minor}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(
            f"[RK144] ring_keras was not built for torch {torch.__version__}. In its "
            'folder: CMAKE_ARGS="-DRING_KERAS_BUILD_TORCH=ON" pip install '
            "--no-build-isolation ."
        ) from None


def require_same_ranks(rank: int, size: int) -> None:
    """Raises if torch's default group numbers this rank otherwise than ring_keras."""
    job = current_job()
    if (rank, size) != (job.rank, job.size):
        raise RingKerasError(
            f"[RK143] rank {rank} of {size} of torch's default process group is rank "
            f"{job.rank} of {job.size} for ring_keras. Both must have the same ranks: "
            'use init_method="ring://", or start both by one launcher.'
        )


class _StoreOfGroup:
    """Where the members of a group alone tell each other something.

    Torch may call a group as one that has been destroyed, and the store still has what
    that one's members said.

    Attributes:
        prefix: Of keys that no other group has.
    """

    def __init__(self, options: Any, ranks: list[int]) -> None:
        self._store = options.store
        self._place = options.group_rank
        self._size = options.group_size
        groups = _groups.of(current_job())
        groups.made[tuple(ranks)] += 1
        count = groups.made[tuple(ranks)]
        self.prefix = f"ring_keras/{groups.default}/{count}"

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """In it this rank may fail before the members' first meeting."""
        try:
            yield
        except Exception as error:
            self._say(_FREE, _said_by(error))
            raise

    def _say(self, what: str, said: str) -> None:
        self._store.set(f"{self.prefix}/{what}/{self._place}", said)

    def gathered(self, what: str, said: str) -> list[str]:
        """What each member says."""
        self._say(what, said)
        return [
            self._store.get(f"{self.prefix}/{what}/{place}").decode()
            for place in range(self._size)
        ]


class _Everyone:
    """The same among all ranks of the job."""

    def gathered(self, what: str, said: str) -> list[str]:
        return [str(one) for one in allgather_object(said, name=_name_of(what))]


def _name_of(what: str) -> str:
    return f"torch/{what}"


def _join(members: _StoreOfGroup | _Everyone, ranks: list[int]) -> int:
    """The number of a communicator that the members make, without the other ranks.

    It is one that none of them has had. Every member hears of an error of any.

    Args:
        members: The way to them.
        ranks: All members, as ranks of the job.
    """
    groups = _groups.of(current_job())
    free = members.gathered(_FREE, str(groups.free))
    _require_none([said for said in free if not said.isdecimal()], ranks)
    communicator = max(map(int, free))
    groups.free = communicator + 1
    error = ""
    try:
        _native.join_communicator(communicator, ranks)
    except Exception as problem:
        error = _said_by(problem)
    # What comes before all have it would be lost.
    _require_none(members.gathered("joined", error), ranks)
    return communicator


def _said_by(error: Exception) -> str:
    return f"rank {current_job().rank}: {in_one_line(error)}"


def _require_none(errors: list[str], ranks: list[int]) -> None:
    for said in filter(None, errors):
        raise RingKerasError(f"[RK143] torch's group of ranks {ranks}: {said}")
