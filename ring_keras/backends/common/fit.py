"""`fit`, `evaluate` and `train_on_batch` of a model with a distributed optimizer."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
from absl import logging

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras._causes import in_one_line
from ring_keras.backends.common.early_fits import replace_methods
from ring_keras.backends.common.evaluation import reporting_all
from ring_keras.backends.common.framework import framework
from ring_keras.backends.common.hook import (
    GradientHook,
    hooks_of,
    hooks_within,
    local_in,
    process_set_of,
    training_on_batch,
)
from ring_keras.backends.common.listed_callbacks import (
    Callbacks,
    listed,
    meets,
    taken,
    with_parts,
)
from ring_keras.backends.common.ranks_fit import RanksFit
from ring_keras.backends.common.reducer import Options
from ring_keras.backends.common.step import current_step
from ring_keras.callbacks.distributed import any_says
from ring_keras.callbacks.saved_averages import refuse_backups_of_averages
from ring_keras.job.job import PerJob, current_job
from ring_keras.job.process_set import ProcessSet, has_peers
from ring_keras.job.topology import is_initialized
from ring_keras.layers.global_moments import process_sets_of
from ring_keras.states.written_files import (
    file_of,
    warn_of_layers_left_out,
    warn_of_writers,
)
from ring_keras.training.calls_under_way import (
    CallUnderWay,
    begin_together,
    calls_under_way,
    name_of_begin,
    require_all_there,
)
from ring_keras.training.root_rank import root_of
from ring_keras.training.told_errors import is_known, note_told
from ring_keras.training.whole_save import whole_save
from ring_keras.values.objects import allgather_object
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["note_divided", "prepare_fits"]

# How Keras's `fit` calls `evaluate`.
_BY_FIT = "_use_cached_eval_dataset"

# Why nobody should train alone, as long as nobody has been told of that.
_seen: PerJob[dict[str, bool]] = PerJob(dict)
_DIVIDED_DATA = "divided data"
_ANOTHER_MODEL = "another model"


@functools.cache
def prepare_fits() -> None:
    """From now on, each call of a model that has a distributed optimizer."""
    internals.require_names_of_back_end()
    framework().prepare()
    replace_methods(fit=_of_all_ranks, evaluate=_in_fit)
    keras.Model.train_on_batch = _beside_fit(keras.Model.train_on_batch)
    for name in ("save", "save_weights"):
        method = getattr(keras.Model, name)
        setattr(keras.Model, name, whole_save(method, local_in))
    scaling = keras.optimizers.LossScaleOptimizer
    scaling.check_finite = _of_all_gradients(scaling.check_finite)


def _of_all_ranks(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def fit(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        own = listed(_given(signature, "callbacks", model, args, kwargs))
        process_set = _ranks_of(model, own)
        callbacks = with_parts(own, model)
        if process_set is None:
            _warn_of_lone_training(model)
            if callbacks == own:
                return method(model, *args, **kwargs)
            bound = _bound(signature, model, args, kwargs)
            with taken(bound.arguments["callbacks"], callbacks) as all_of_them:
                bound.arguments["callbacks"] = all_of_them
                return method(*bound.args, **bound.kwargs)
        with _told(CallUnderWay("fit"), model, process_set):
            bound = _bound(signature, model, args, kwargs)
            given = bound.arguments
            with RanksFit.around_another(model):
                begin_together(process_set)
                for hook in hooks_of(model):
                    hook.begin_together()
                with framework().fit(model, process_set, given) as ranks_fit:
                    refuse_backups_of_averages(callbacks)
                    # One rank alone may have refused what it was given.
                    require_all_there(process_set)
                    kept = _without_files_of_others(callbacks, model, process_set)
                    with taken(given["callbacks"], [*kept, ranks_fit]) as all_of_them:
                        given["callbacks"] = all_of_them
                        if process_set.rank() != 0:
                            given["verbose"] = 0
                        result = method(*bound.args, **bound.kwargs)
                        require_all_there(process_set)
            return result

    return fit


def _bound(
    signature: inspect.Signature, model: keras.Model, args: Any, kwargs: Any
) -> inspect.BoundArguments:
    bound = signature.bind(model, *args, **kwargs)
    bound.apply_defaults()
    return bound


def _given(
    signature: inspect.Signature, name: str, model: keras.Model, args: Any, kwargs: Any
) -> Any:
    """An argument of a call, which may be wrong otherwise."""
    try:
        return signature.bind(model, *args, **kwargs).arguments.get(name)
    except TypeError:  # It fails by that.
        return kwargs.get(name)


@contextlib.contextmanager
def _told(
    call: CallUnderWay, model: keras.Model, process_set: ProcessSet
) -> Iterator[None]:
    """The call is under way; the other ranks are told of an error in it."""
    calls_under_way().append(call)
    # A program that trains again where it handles an error: of an earlier call.
    handled = sys.exc_info()[1]
    try:
        yield
    except BaseException as error:
        _tell(call, model, process_set, error, handled)
        raise
    finally:
        calls_under_way().pop()


def _ranks_of(model: keras.Model, callbacks: Callbacks = ()) -> ProcessSet | None:
    """Those that train it together, this one among them; None if it trains alone.

    Args:
        model: That is trained.
        callbacks: Of its `fit`.

    Raises:
        NotInitializedError: If it has a distributed optimizer, or the ranks meet in a
            callback, and there is no job.
    """
    internals.build_awaited_optimizers(model)
    _adopt_optimizers(model, callbacks)
    if not hooks_of(model) and not meets(callbacks, "fit"):
        return None
    current_job()  # Its first step would raise, and leave no weights on JAX.
    if hooks_of(model):
        _note(_ANOTHER_MODEL)
    process_set = process_set_of(model)
    return process_set if has_peers(process_set) and process_set.included() else None


def note_divided() -> None:
    """Ranks of the job have parts of some data: none should train alone."""
    prepare_fits()
    _note(_DIVIDED_DATA)


def _note(why: str) -> None:
    _seen.of(current_job()).setdefault(why, True)


def _adopt_optimizers(model: keras.Model, callbacks: Callbacks) -> None:
    """Those that are not distributed become so, if a callback is there for that."""
    if not any_says(callbacks, "adopts_optimizers"):
        return
    current_job()  # Or they would be of none, in the next call too.
    options = Options(ReduceOp.AVERAGE, process_set_of(model), None, None)
    for optimizer in internals.innermost_optimizers(model):
        if GradientHook.of(optimizer) is None:
            framework().hook(optimizer, options).install()


def _warn_of_lone_training(model: keras.Model) -> None:
    if not is_initialized() or hooks_of(model):
        return
    job = current_job()
    seen = _seen.of(job)
    if job.rank != 0 or job.size == 1:
        return
    if seen.get(_DIVIDED_DATA):
        logging.warning(
            "ring_keras: [RK651] the optimizer of model '%s' is not distributed, so "
            "each rank trains a model of its own, on its part of the data. Compile it "
            "with ring_keras.DistributedOptimizer(optimizer).",
            model.name,
        )
    elif seen.get(_ANOTHER_MODEL) and not internals.has_own_losses(model):
        # Another train_step may average.
        logging.warning(
            "ring_keras: [RK651] the optimizer of model '%s' is not distributed, "
            "though another model's is: copies of one, and those from files, are not. "
            "If several ranks train it, each trains a model of its own. Compile it "
            "with ring_keras.DistributedOptimizer(optimizer).",
            model.name,
        )
    else:
        return
    # Said once; of data that are divided later, once more.
    seen.update(dict.fromkeys((*seen, _ANOTHER_MODEL), False))


def _without_files_of_others(
    callbacks: Callbacks, model: keras.Model, process_set: ProcessSet
) -> Callbacks:
    """A file of all ranks one of them writes; its callback is there alone."""
    own = {file for one in callbacks if (file := file_of(one)) is not None}
    everyones = allgather_object(own, name="fit/files", process_set=process_set)
    common = set.intersection(*everyones)
    warn_of_writers([theirs - common for theirs in everyones], process_set)
    root_rank = root_of(callbacks, process_set.ranks)
    warn_of_layers_left_out(
        callbacks, common, _own_of_each_rank(callbacks, model), root_rank, process_set
    )
    if process_set.ranks[process_set.rank()] == root_rank:
        return callbacks
    return [one for one in callbacks if file_of(one) not in common]


def _own_of_each_rank(callbacks: Callbacks, model: keras.Model) -> str | None:
    """The name of something that each rank trains, or keeps, for itself, if any."""
    layers = [one for hook in hooks_of(model) for one in hook.options.local_layers]
    if layers:  # Which may have no weights yet.
        return str(layers[0].name)
    keys = {key for one in callbacks for key in getattr(one, "local_keys", ())}
    for variable in model.weights:
        if internals.variable_key(variable) in keys:
            return str(variable.path)
    return None


def _tell(
    call: CallUnderWay,
    model: keras.Model,
    process_set: ProcessSet,
    error: BaseException,
    handled: BaseException | None,
) -> None:
    """Tells the other ranks of an error of this one's own."""
    if is_known(error, handled) or not is_initialized() or not process_set.added:
        return
    reason = in_one_line(error)
    communicator_id = process_set.communicator_id()
    note_told(error)
    if call.met is None:
        _native.stay_away(
            name_of_begin(call.method),
            communicator_id,
            f"its {call.method}() of model '{model.name}' raised {reason}",
        )
        return
    sets = [one for one in process_sets_of(model) if one.added and has_peers(one)]
    others = {one.communicator_id() for one in sets} - {communicator_id}
    # Those first: who hears by the whole set knows of these, too.
    for one in (*others, communicator_id):
        _native.give_up_step(
            one,
            f"[RK310] model '{model.name}': rank {current_job().rank} cannot take "
            f"part: its {call.method}() raised {reason}",
            steps_ahead=0,
            unless_heard=one in others,
        )
        # The program hears of it by the error.
        _native.forget_given_up(one)


def _in_fit(method: Callable[..., Any]) -> Callable[..., Any]:
    """A validation of `fit` reports of all ranks' data; any other of this rank's.

    Unless its callbacks say otherwise: then all ranks evaluate.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def evaluate(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        ranks_fit = RanksFit.of(model)
        of_fit = bool(kwargs.get(_BY_FIT))
        given = _given(signature, "callbacks", model, args, kwargs)
        process_set = None
        if not of_fit and meets(listed(given), "evaluate"):
            current_job()
            process_set = process_set_of(model)
        with contextlib.ExitStack() as stack:
            if ranks_fit is not None:
                stack.enter_context(ranks_fit.evaluating(validates=of_fit))
            if process_set is None or not has_peers(process_set):
                return method(model, *args, **kwargs)
            if ranks_fit is None:
                call = CallUnderWay("evaluate")
                stack.enter_context(_told(call, model, process_set))
                begin_together(process_set)
            stack.enter_context(reporting_all(model, process_set))
            result = method(model, *args, **kwargs)
            require_all_there(process_set)
            return result

    return evaluate


def _beside_fit(method: Callable[..., Any]) -> Callable[..., Any]:
    """In a callback it is none of the steps of the `fit`."""

    @functools.wraps(method)
    def train_on_batch(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        if _ranks_of(model) is None:
            _warn_of_lone_training(model)
            return method(model, *args, **kwargs)
        with (
            RanksFit.around_another(model),
            training_on_batch(model),
            framework().fit.around_batch(model, *args, **kwargs),
        ):
            return method(model, *args, **kwargs)

    return train_on_batch


def _of_all_gradients(method: Callable[..., Any]) -> Callable[..., Any]:
    """All ranks skip an update, or none."""

    @functools.wraps(method)
    def check_finite(optimizer: Any, gradients: Any) -> Any:
        finite = method(optimizer, gradients)
        if not current_step().counts:
            finite = keras.ops.ones_like(finite)
        hooks = hooks_within([optimizer.inner_optimizer])
        # One of each set of ranks, whose others hear of it.
        for hook in {hook.options.process_set.key(): hook for hook in hooks}.values():
            finite = hook.finite_everywhere(finite)
        return finite

    return check_finite
