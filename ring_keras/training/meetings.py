"""Where the ranks meet in a call of `fit` or `evaluate`, and what if one has failed."""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from ring_keras import _native
from ring_keras._causes import in_one_line
from ring_keras.errors import (
    CommunicationError,
    CorruptDataError,
    RankMismatchError,
    from_tensorflow,
)
from ring_keras.job.job import Job, current_job, job_or_none
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.reduce_op import ReduceOp

__all__ = ["failures_told", "have_met", "meet", "note_first_meeting"]

# Of an exception: that the other ranks have been told of it.
_TOLD = "_ring_keras_told"

# What another rank may have been the first to know.
_OF_OTHERS = (CommunicationError, CorruptDataError, RankMismatchError)


class _UnderWay(threading.local):
    """Calls that go on in one thread, the innermost last.

    Of each: the job, and the ranks of it that have met in the call; None before.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Job, ProcessSet] | None] = []


_under_way = _UnderWay()


def meet(process_set: ProcessSet) -> None:
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


def note_first_meeting(process_set: ProcessSet) -> None:
    """All ranks are in the call that is under way, and have left those before it.

    To be called once in it, by all, after a collective that precedes no step; it is
    one, too. From then on the others are told if this rank leaves the call by an error.
    """
    communicator_id = process_set.communicator_id()
    _native.forget_given_up(communicator_id)
    # Before a rank that goes on can fail: that must not be forgotten.
    _native.barrier("fit/met", communicator_id)
    if _under_way.calls:
        _under_way.calls[-1] = current_job(), process_set


def have_met() -> bool:
    """Whether they have, in the innermost call that is under way in this thread."""
    return bool(_under_way.calls) and _under_way.calls[-1] is not None


def failures_told(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `keras.Model` in which ranks meet, maybe.

    If it raises on one of them, for whatever reason, the program may catch that and go
    on. The others would wait for this rank where they meet next: so they are told why.
    They meet once more when it ends, so that all are there to be told.
    """

    @functools.wraps(method)
    def told(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        _under_way.calls.append(None)
        # A program that trains again where it handles an error: of an earlier call.
        handled = sys.exc_info()[1]
        try:
            result = method(model, *args, **kwargs)
            process_set = _still_together()
            if process_set is not None:
                meet(process_set)
            return result
        except BaseException as error:
            process_set = _still_together()
            if process_set is not None:
                # By no name that stays: the error, whose traceback has this frame,
                # would keep the call's callbacks.
                _tell(process_set, model, method.__name__, error, handled)
            raise
        finally:
            _under_way.calls.pop()

    return told


def _still_together() -> ProcessSet | None:
    """The ranks that have met in the innermost call, if they are what they were.

    None in an elastic job, where the others go on without a rank that fails.
    """
    met = _under_way.calls[-1]
    if met is None:
        return None
    job, process_set = met
    is_elastic = job.config.elastic_socket is not None
    is_same = job is job_or_none() and process_set.added
    return process_set if is_same and not is_elastic else None


def _tell(
    process_set: ProcessSet,
    model: keras.Model,
    method: str,
    error: BaseException,
    handled: BaseException | None,
) -> None:
    """Tells the others of an error of this rank's own.

    Of one that ends the process the store tells.
    """
    communicator_id = process_set.communicator_id()
    if isinstance(error, Exception) and not _is_known(error, handled):
        with contextlib.suppress(AttributeError):
            setattr(error, _TOLD, True)
        _native.give_up_step(
            communicator_id,
            f"[RK310] model '{model.name}': rank {current_job().rank} cannot take "
            f"part: its {method}() raised {in_one_line(error)}",
        )
    # The program hears of it by the error.
    _native.forget_given_up(communicator_id)


def _is_known(error: BaseException, handled: BaseException | None) -> bool:
    """Whether the other ranks know of it, or of what it came of in this call.

    Args:
        error: What ended the call.
        handled: What the program was handling when the call began.
    """
    seen: list[BaseException] = []
    cause: BaseException | None = error
    # `raise error from error` is its own cause.
    while cause is not None and cause is not handled and cause not in seen:
        if getattr(cause, _TOLD, False):
            return True
        if isinstance(from_tensorflow(cause) or cause, _OF_OTHERS):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False
