"""A call of `fit` or `evaluate` that fails on one rank: the others are told."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import keras

from ring_keras import _native
from ring_keras._causes import in_one_line
from ring_keras.job.job import current_job, job_or_none
from ring_keras.job.process_set import (
    ProcessSet,
    global_process_set,
    has_peers,
    has_process_sets,
)
from ring_keras.training.calls_under_way import (
    CallUnderWay,
    calls_under_way,
    name_of_begin,
    require_all_there,
)
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.distributed_models import (
    is_distributed,
    parts_of,
    process_set_of,
    steps_ahead,
)
from ring_keras.training.told_errors import is_known, note_told

__all__ = ["every_fit_meets", "failures_told"]

_every_fit_meets = False


def every_fit_meets() -> None:
    """From now on the ranks meet in each `fit` of a model that is distributed."""
    global _every_fit_meets
    _every_fit_meets = True


def failures_told(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `keras.Model` in which ranks meet, maybe.

    If it raises on one of them, for whatever reason, the program may catch that and go
    on. The others would wait for this rank where they meet next: so they are told why.
    They meet once more when it ends, so that all are there to be told.
    """
    name = method.__name__
    signature = inspect.signature(method)

    @functools.wraps(method)
    def told(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        call = CallUnderWay(name)
        calls_under_way().append(call)
        # A program that trains again where it handles an error: of an earlier call.
        handled = sys.exc_info()[1]
        try:
            result = method(model, *args, **kwargs)
            process_set = _still_together(call)
            if process_set is not None:
                require_all_there(process_set)
            return result
        except BaseException as error:
            # By no name that stays: the error, whose traceback has this frame, would
            # keep the call's callbacks.
            if call.met is not None or call.is_elastic:
                _tell(call, model, error, handled)
            elif not is_known(error, handled):
                try:
                    given = signature.bind(model, *args, **kwargs).arguments
                except TypeError:  # It has failed by that.
                    given = kwargs
                _stay_away(name, model, given.pop("callbacks", None), error)
            raise
        finally:
            calls_under_way().pop()
            for task in call.afterwards:
                task()

    return told


def _still_together(call: CallUnderWay) -> ProcessSet | None:
    """The ranks that have met in the call, if they are what they were.

    None in an elastic job, where the others go on without a rank that fails.
    """
    if call.met is None:
        return None
    job, process_set = call.met
    is_elastic = job.config.elastic_socket is not None
    is_same = job is job_or_none() and process_set.added
    return process_set if is_same and not is_elastic else None


def _tell(
    call: CallUnderWay,
    model: keras.Model,
    error: BaseException,
    handled: BaseException | None,
) -> None:
    """Tells the ranks that have met this one of an error of its own.

    And those of a set within, in which they wait for it, of any: see `parts_of`.
    """
    process_set, job = _still_together(call), job_or_none()
    if call.is_elastic and job is not None and job.size > 1:
        process_set = global_process_set
    if process_set is None:
        return
    why = f"its {call.method}() raised {in_one_line(error)}"
    who = f"model '{model.name}': rank {current_job().rank}"
    cannot = f"[RK310] {who} cannot take part: {why}"
    ahead = steps_ahead(model)
    knows = is_known(error, handled)
    parts = parts_of(model) if call.method == "fit" and not call.is_elastic else []
    # Before the others: who hears there knows of these, too.
    for part in parts:
        _native.give_up_step(
            part.communicator_id(), cannot, steps_ahead=ahead, unless_heard=True
        )
    communicator_id = process_set.communicator_id()
    if not knows:
        note_told(error)
        current_job().has_failed_alone = call.is_elastic
        _native.give_up_step(
            communicator_id,
            f"[RK350] {who} has left, and the others go on without it: {why}"
            if call.is_elastic
            else cannot,
            steps_ahead=ahead,
            unless_heard=False,
        )
    elif parts:  # Maybe only the ranks of one know.
        _native.give_up_step(
            communicator_id, cannot, steps_ahead=ahead, unless_heard=True
        )
    # The program hears of it by the error.
    _native.forget_given_up(communicator_id)


def _stay_away(
    method: str, model: keras.Model, callbacks: Any, error: BaseException
) -> None:
    """Tells the ranks that wait for this one where they meet first, or will."""
    process_set = _expected(method, model, callbacks)
    if process_set is None:
        return
    note_told(error)
    _native.stay_away(
        name_of_begin(method),
        process_set.communicator_id(),
        f"its {method}() of model '{model.name}' raised {in_one_line(error)}",
    )


def _expected(method: str, model: keras.Model, callbacks: Any) -> ProcessSet | None:
    """The ranks that meet in a call with these callbacks, if they do."""
    job = job_or_none()
    if job is None or job.size == 1 or job.config.elastic_socket is not None:
        return None
    if isinstance(callbacks, keras.callbacks.CallbackList):
        if DistributedFit.of(callbacks) is not None:
            return None  # A validation of a `fit`, in which they have met.
        callbacks = callbacks.callbacks
    listed = any(
        method in getattr(callback, "ranks_meet_in", ())
        for callback in keras.tree.flatten(callbacks)
    )
    # One that is not compiled may be so on the others.
    is_meant = is_distributed(model) if model.compiled else not has_process_sets(job)
    automatic = method == "fit" and _every_fit_meets and is_meant
    if not listed and not automatic:
        return None
    process_set = process_set_of(model)
    return process_set if has_peers(process_set) and process_set.added else None
