"""What each `fit` of several ranks gets on TensorFlow, before callbacks begin."""

from __future__ import annotations

import functools

import keras

from ring_keras import keras_internals as internals
from ring_keras.callbacks.distributed import Distributed, any_says
from ring_keras.callbacks.fit_calls import agree_on_calls, insert_callback
from ring_keras.callbacks.saved_averages import refuse_backups_of_averages
from ring_keras.callbacks.sharded_saves import refuse_savers_of_one_rank
from ring_keras.callbacks.swapped_averages import swap_together
from ring_keras.job.job import current_job
from ring_keras.job.process_set import has_peers
from ring_keras.job.topology import is_initialized, size
from ring_keras.keras_internals import calls
from ring_keras.training.attachment import attach
from ring_keras.training.data_orders import OrdersOfOneRank
from ring_keras.training.distributed_models import is_distributed, process_set_of
from ring_keras.training.failures import every_fit_meets
from ring_keras.training.own_pace import takes_own_pace
from ring_keras.training.root_rank import root_of

__all__ = ["prepare_fits"]


@functools.cache
def prepare_fits() -> None:
    """From now on, each `fit` that has, or is to have, a distributed optimizer."""
    internals.call_before_callbacks("on_train_begin", _begin_fit)
    swap_together()
    internals.postpone_writing(_is_to_be_prepared)
    internals.call_before_callbacks("on_test_begin", _show_progress_once)
    internals.call_before_callbacks("on_predict_begin", _show_progress_once)
    every_fit_meets()


def _is_to_be_prepared(
    callbacks: keras.callbacks.CallbackList, model: keras.Model
) -> bool:
    """Whether it is the list of such a `fit`, in which ranks may write one file."""
    if not is_initialized() or size() == 1 or not calls.is_calling_fit(model):
        return False
    listed = any(isinstance(one, Distributed) for one in callbacks.callbacks)
    return listed or is_distributed(model)


def _begin_fit(callbacks: keras.callbacks.CallbackList) -> None:
    _prepare_fit(callbacks)
    for callback in callbacks.callbacks:
        internals.begin_writing(callback)


def _prepare_fit(callbacks: keras.callbacks.CallbackList) -> None:
    model = callbacks.model
    run = None if model is None else calls.calling_run(model)
    if run is None or not run.trains or run.callbacks is not callbacks:
        return
    distributed = next(
        (one for one in callbacks.callbacks if isinstance(one, Distributed)), None
    )
    if distributed is not None:
        current_job()  # There must be one: each rank would train alone.
    elif not is_initialized() or not is_distributed(model):
        return
    attach(model, adopt_optimizers=True)
    refuse_savers_of_one_rank(callbacks.callbacks, model)
    process_set = process_set_of(model)
    if has_peers(process_set):
        refuse_backups_of_averages(callbacks.callbacks)
    may_change = any_says(callbacks.callbacks, "ranks_may_change")
    if distributed is None:
        # Others may come, with these callbacks.
        if not has_peers(process_set) and not may_change and not takes_own_pace(model):
            if not any(isinstance(c, OrdersOfOneRank) for c in callbacks.callbacks):
                insert_callback(callbacks, 0, OrdersOfOneRank())
            return
        distributed = Distributed()
        insert_callback(callbacks, len(callbacks.callbacks), distributed)
    root = root_of(callbacks.callbacks, process_set.ranks)
    place = callbacks.callbacks.index(distributed)
    for part in reversed(distributed.missing_parts(callbacks.callbacks, root)):
        insert_callback(callbacks, place + 1, part)
    _show_progress_once(callbacks)
    # Ranks that come later would not ask the others anything here.
    if has_peers(process_set) and not may_change:
        agree_on_calls(callbacks, run, distributed.metrics, root, process_set)


def _show_progress_once(callbacks: keras.callbacks.CallbackList) -> None:
    """On the first rank of those that train the model."""
    model = callbacks.model
    if model is None or not is_initialized() or not is_distributed(model):
        return
    process_set = process_set_of(model)
    if process_set.included() and process_set.rank() != 0:
        internals.remove_progress_bar(callbacks)
