"""What the ranks' calls of `fit` have in common, and what becomes of the rest."""

import itertools
from collections.abc import Sequence

import keras
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.callbacks.changing import changing_callbacks, warn_of_missing
from ring_keras.callbacks.metric_average import MetricAverage
from ring_keras.callbacks.root_only import RootOnly
from ring_keras.callbacks.same_data import (
    cache_places,
    compare_first_batches,
    item_digest,
    may_be_same,
    source_digest,
    warn_of_same_caches,
    warn_of_same_data,
    warn_of_shards,
)
from ring_keras.callbacks.sharded_saves import (
    backups_of_all,
    make_directory,
    own_of_each_rank,
    require_same_backups,
    require_same_savers,
    when_it_saves,
)
from ring_keras.callbacks.shared_files import saves_on_all_ranks
from ring_keras.callbacks.swapped_averages import require_same_swaps, swaps_of
from ring_keras.job.process_set import ProcessSet
from ring_keras.keras_internals import calls
from ring_keras.states.array_digest import array_digest
from ring_keras.states.written_files import file_of, warn_of_layers_left_out
from ring_keras.training.calls_under_way import begin_together
from ring_keras.training.common_values import refuse_metrics_of_some
from ring_keras.training.distributed_fit import DistributedFit, Moment
from ring_keras.training.distributed_models import parts_of
from ring_keras.values.objects import allgather_object

__all__ = ["agree_on_calls", "insert_callback"]


def agree_on_calls(
    callbacks: keras.callbacks.CallbackList,
    run: calls.Run,
    own_metrics: MetricAverage,
    root_rank: int,
    process_set: ProcessSet,
) -> None:
    """Compares what the ranks' calls were given, before any callback is called.

    Collective. A file of all ranks is written by one, TensorBoard's has what all ranks
    measure, metrics are of all ranks' data where all validate, and ranks are told that
    train on the same data, or without a callback that changes others' training.

    Args:
        callbacks: Of this rank's call; changed.
        run: That call.
        own_metrics: A callback that may be taken out of the list.
        root_rank: Which writes the files.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank, if some do not validate, and the user's own
            `MetricAverage` would wait for them; or if some would not save a state that
            the ranks divide when others do.
    """
    changing = changing_callbacks(callbacks.callbacks)
    board = _plain_board(callbacks.callbacks)
    savers = [
        callback
        for callback in callbacks.callbacks
        if saves_on_all_ranks(callback, callbacks.model)
    ]
    for saver in savers:
        make_directory(saver)
    ours = {
        "changing": changing,
        "files": [file for file in map(file_of, callbacks.callbacks) if file],
        "checkpoints": [when_it_saves(saver) for saver in savers],
        "swaps": swaps_of(callbacks.callbacks, callbacks.model),
        "backups": backups_of_all(callbacks.callbacks, callbacks.model),
        "board": None if board is None else board.update_freq,
        "has_own_board": any(
            getattr(one, "gathers_figures", False) for one in callbacks.callbacks
        ),
        "validates": run.validation_data is not None,
        "data": array_digest(run.data),
        "item": item_digest(run),
        "data_may_be_same": may_be_same(run.data),
        "source": source_digest(run),
        "shards": internals.shards_behind_shuffles(run.data),
        "caches": cache_places(run.data),
        "validation_caches": cache_places(run.validation_data),
    }
    begin_together(process_set, parts_of(callbacks.model))
    everyones = allgather_object(ours, name="fit/calls", process_set=process_set)
    validate = [theirs["validates"] for theirs in everyones]
    require_same_backups([theirs["backups"] for theirs in everyones], process_set)
    require_same_savers(
        [theirs["checkpoints"] for theirs in everyones], validate, process_set
    )
    require_same_swaps([theirs["swaps"] for theirs in everyones], validate, process_set)
    warn_of_missing([theirs["changing"] for theirs in everyones], process_set)
    files = set.intersection(*(set(theirs["files"]) for theirs in everyones))
    warn_of_layers_left_out(
        [one for one in callbacks.callbacks if one not in savers],
        files,
        own_of_each_rank(callbacks.callbacks, callbacks.model),
        root_rank,
        process_set,
    )
    for place, callback in enumerate(list(callbacks.callbacks)):
        file = file_of(callback)
        if saves_on_all_ranks(callback, callbacks.model):
            continue
        if file in files:
            del callbacks.callbacks[place]
            if backups_of_all([callback], callbacks.model):
                from ring_keras.callbacks.shared_backup import SharedBackup

                of_all: keras.callbacks.Callback = SharedBackup(callback, root_rank)
            else:
                of_all = RootOnly(callback, root_rank)
            insert_callback(callbacks, place, of_all)
    if not any(theirs["has_own_board"] for theirs in everyones):
        freqs = [theirs["board"] for theirs in everyones]
        _add_to_board(callbacks, board, freqs, root_rank, process_set)
    if len(set(validate)) > 1:
        ranks = list(itertools.compress(process_set.ranks, validate))
        _leave_metrics_to_ranks(callbacks, own_metrics, ranks, process_set)
    share_a_cache, _ = (
        warn_of_same_caches([theirs[key] for theirs in everyones], process_set)
        for key in ("caches", "validation_caches")
    )
    data, item, source = (
        {theirs[key] for theirs in everyones} for key in ("data", "item", "source")
    )
    if len(data) == 1 and None not in data:
        warn_of_same_data("arrays", process_set)
    elif len(item) == 1 and None not in item:
        warn_of_same_data("items", process_set)
    elif warn_of_shards([theirs["shards"] for theirs in everyones], process_set):
        pass  # Its batches differ.
    elif len(source) == 1 and None not in source:
        warn_of_same_data("sources", process_set)
    elif share_a_cache:
        pass  # That is why they may be the same.
    elif all(theirs["data_may_be_same"] for theirs in everyones):
        fit = DistributedFit.begin(own_metrics)
        assert fit is not None
        compare = compare_first_batches(process_set)
        fit.when(Moment.FIRST_EXECUTION_IS_DONE, "same data", compare)


def _plain_board(
    callbacks: Sequence[keras.callbacks.Callback],
) -> keras.callbacks.TensorBoard | None:
    """Keras's own, if this rank is to run one. A subclass may write what it likes."""
    for callback in callbacks:
        if isinstance(callback, RootOnly):
            callback = callback.running()
        if type(callback) is keras.callbacks.TensorBoard:
            return callback
    return None


def _add_to_board(
    callbacks: keras.callbacks.CallbackList,
    board: keras.callbacks.TensorBoard | None,
    freqs: list[int | str | None],
    root_rank: int,
    process_set: ProcessSet,
) -> None:
    """What all ranks measure goes into the file of one: the root's, if it has any.

    Args:
        callbacks: Of this rank's call; changed.
        board: Keras's own callback, if this rank runs one.
        freqs: The `update_freq` of each rank's; None where there is none.
        root_rank: Which writes, if it has one.
        process_set: The ranks that train together.
    """
    of_rank = dict(zip(process_set.ranks, freqs, strict=True))
    writers = [rank for rank, freq in of_rank.items() if freq is not None]
    if not writers:
        return
    writer = root_rank if root_rank in writers else writers[0]
    own = board if process_set.ranks[process_set.rank()] == writer else None
    freq = of_rank[writer]
    assert freq is not None
    # Else no `fit` needs what writes for TensorBoard.
    from ring_keras.callbacks.beside_tensorboard import BesideTensorBoard

    insert_callback(callbacks, 0, BesideTensorBoard(own, freq))


def _leave_metrics_to_ranks(
    callbacks: keras.callbacks.CallbackList,
    own_metrics: MetricAverage,
    validating: list[int],
    process_set: ProcessSet,
) -> None:
    """Metrics of all ranks' data would have the others wait for all ranks."""
    if own_metrics not in callbacks.callbacks:
        refuse_metrics_of_some(validating)
    callbacks.callbacks.remove(own_metrics)
    if process_set.rank() == 0:
        logging.warning(
            "ring_keras: [RK502] "
            "only ranks %s have validation_data, so each rank's metrics, "
            "in its History too, are of its own data. Give every rank its part, with "
            "ring_keras.data.shard().",
            validating,
        )


def insert_callback(
    callbacks: keras.callbacks.CallbackList,
    place: int,
    callback: keras.callbacks.Callback,
) -> None:
    """Puts one into a list that has a model already."""
    callback.set_params(callbacks.params)
    callback.set_model(callbacks.model)
    callbacks.callbacks.insert(place, callback)
