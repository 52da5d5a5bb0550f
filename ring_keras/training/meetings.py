"""Where the ranks meet in a call of `fit` or `evaluate`, and what if one has failed."""

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras._causes import in_one_line
from ring_keras.errors import RankMismatchError, RingKerasError, from_tensorflow
from ring_keras.job.job import Job, current_job, job_or_none
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.objects import allgather_object
from ring_keras.ops.reduce_op import ReduceOp
from ring_keras.optimizers.optimizer_hook import OptimizerHook

__all__ = ["failures_told", "gather_calls", "have_met", "meet", "note_first_meeting"]

_FIRST = "fit/calls"


class _Call:
    """A call that goes on in this thread.

    Attributes:
        has_come: Whether this rank is where the ranks meet first.
        met: The job, and the ranks of it that have met in the call; None before.
    """

    has_come = False
    met: tuple[Job, ProcessSet] | None = None


class _UnderWay(threading.local):
    """Those of one thread, the innermost last."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


_under_way = _UnderWay()


def gather_calls(ours: Any, process_set: ProcessSet) -> list[Any]:
    """What each rank's `fit` was given: the ranks meet for the first time in it.

    Raises:
        RankMismatchError: If some rank's has failed on its way here.
    """
    if _under_way.calls:
        _under_way.calls[-1].has_come = True
    excuse = current_job().excuses.pop(process_set.communicator_id(), None)
    if excuse is not None:  # The others come to the earlier call first, too.
        excuse.join()
    everyones = allgather_object([ours, ""], name=_FIRST, process_set=process_set)
    for _, why in everyones:
        if why:
            raise RankMismatchError(f"[RK310] {why}")
    note_first_meeting(process_set)
    return [theirs for theirs, _ in everyones]


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
        _under_way.calls[-1].met = current_job(), process_set


def have_met() -> bool:
    """Whether they have, in the innermost call that is under way in this thread."""
    return bool(_under_way.calls) and _under_way.calls[-1].met is not None


def failures_told(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `keras.Model` in which ranks meet, maybe.

    If it raises on one of them, for whatever reason, the program may catch that and go
    on. The others would wait for this rank where they meet next: so they are told why.
    """

    @functools.wraps(method)
    def told(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        call = _Call()
        _under_way.calls.append(call)
        try:
            return method(model, *args, **kwargs)
        except BaseException as error:
            job = job_or_none()
            if job is not None:
                _tell(job, call, model, method.__name__, error)
            raise
        finally:
            _under_way.calls.pop()

    return told


def _tell(
    job: Job, call: _Call, model: keras.Model, method: str, error: BaseException
) -> None:
    """Tells the others of an error of this rank's own.

    In an elastic job they go on without a rank that fails. Of one whose process ends
    the store tells.
    """
    is_own = isinstance(error, Exception) and from_tensorflow(error) is None
    concerns_others = is_own and job.config.elastic_socket is None
    why = (
        f"model '{model.name}': rank {job.rank} cannot take part: its "
        f"{method}() raised {in_one_line(error)}"
    )
    if call.met is not None:
        of, process_set = call.met
        if of is not job or not process_set.added:
            return
        if concerns_others:
            _native.give_up_step(process_set.communicator_id(), f"[RK310] {why}")
        # The program hears of it by the error.
        _native.forget_given_up(process_set.communicator_id())
    elif concerns_others and not call.has_come and method == "fit":
        _excuse(model, why)


def _excuse(model: keras.Model, why: str) -> None:
    """Has the others leave a `fit` that this rank has not come to.

    They may be where the ranks meet first, or come there later. The program does not
    wait for them with its error.
    """
    hooks = map(OptimizerHook.of, internals.innermost_optimizers(model))
    process_set = next((hook.process_set for hook in hooks if hook is not None), None)
    if process_set is None or not process_set.added:
        return
    if process_set.size() == 1 or not process_set.included():
        return
    _Excuse(current_job(), process_set, why).start()


class _Excuse(threading.Thread):
    """Takes part where the ranks meet first in a `fit`, with an error.

    A daemon, which ends when this rank leaves the job.
    """

    def __init__(self, job: Job, process_set: ProcessSet, why: str) -> None:
        super().__init__(name="ring_keras excuse", daemon=True)
        self._process_set = process_set
        self._why = why
        communicator_id = process_set.communicator_id()
        self._earlier = job.excuses.get(communicator_id)
        job.excuses[communicator_id] = self
        job.gathers.add(self)

    def run(self) -> None:
        if self._earlier is not None:
            self._earlier.join()
        with contextlib.suppress(RingKerasError):
            allgather_object(
                [None, self._why], name=_FIRST, process_set=self._process_set
            )

    def close(self, timeout_s: float | None = None) -> None:
        """Returns when it has ended."""
        self.join(timeout_s)
