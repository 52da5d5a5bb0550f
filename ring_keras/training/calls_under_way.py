"""Where the ranks meet in a call of `fit` or `evaluate`."""

import itertools
import threading
from collections.abc import Callable, Iterable

import numpy as np

from ring_keras import _native
from ring_keras.job.job import Job, current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.reduce_op import ReduceOp

__all__ = [
    "CallUnderWay",
    "begin_together",
    "calls_under_way",
    "have_met",
    "name_of_begin",
    "require_all_there",
]


_numbers = itertools.count()


class CallUnderWay:
    """A call of `fit` or `evaluate`.

    Args:
        method: Its name.
    """

    def __init__(self, method: str) -> None:
        self.method = method
        self.number = next(_numbers)
        """No other call of this process has it."""
        self.met: tuple[Job, ProcessSet] | None = None
        """The job, and the ranks of it that have met in the call; None before."""
        self.is_elastic = False
        """Whether the others go on in it without a rank that fails."""
        self.afterwards: list[Callable[[], None]] = []
        """Called when it is over, whatever has become of it."""


class _UnderWay(threading.local):
    def __init__(self) -> None:
        self.calls: list[CallUnderWay] = []


_under_way = _UnderWay()


def calls_under_way() -> list[CallUnderWay]:
    """Those of this thread, the innermost last."""
    return _under_way.calls


def require_all_there(process_set: ProcessSet) -> None:
    """Raises on every rank if one has left the call by an error; collective.

    Other collectives would wait for that rank.
    """
    _native.allreduce(
        np.zeros(1, np.int32),
        op=ReduceOp.MAX.value,
        name="fit/meeting",
        communicator_id=process_set.communicator_id(),
        # A rank that fails gives the next step up, and so has the others leave this.
        precedes_step=True,
    )


def name_of_begin(method: str) -> str:
    """The name of the collective in which the ranks meet first in a call of it."""
    return f"{method}/begins"


def begin_together(process_set: ProcessSet, parts: Iterable[ProcessSet] = ()) -> None:
    """All ranks are in the call that is under way, and have left those before it.

    To be called once in it, by all, before any other collective of the call. From then
    on the others are told if this rank leaves the call by an error.

    Args:
        process_set: The ranks.
        parts: Sets of some of them that meet in its steps, too.

    Raises:
        RankMismatchError: On every other rank, if one has left it on the way here.
    """
    call = _under_way.calls[-1] if _under_way.calls else CallUnderWay("fit")
    communicator_id = process_set.communicator_id()
    _native.barrier(name_of_begin(call.method), communicator_id)
    for one in (process_set, *parts):
        _native.forget_given_up(one.communicator_id())
    # Before a rank that goes on can fail: that must not be forgotten.
    _native.barrier("fit/met", communicator_id)
    call.met = current_job(), process_set


def have_met() -> bool:
    """Whether they have, in the innermost call that is under way in this thread."""
    return bool(_under_way.calls) and _under_way.calls[-1].met is not None
