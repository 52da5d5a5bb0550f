"""A save by one rank in which all take part, as each has a part of a state."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.sharded_files import failed_save_told
from ring_keras.training.calls_under_way import require_all_there
from ring_keras.training.told_errors import is_known, note_told
from ring_keras.values.objects import broadcast_object
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["save_if_due", "save_with_parts"]


def save_with_parts(
    model: keras.Model, process_set: ProcessSet, save: Callable[[], Any] | None
) -> None:
    """Saves on one rank, which gets the others' parts of the state; collective.

    Args:
        model: What is saved of it has the state of its optimizers.
        process_set: The ranks that train it together.
        save: On the rank that writes; None on the others.

    Raises:
        RankMismatchError: On the others, if that rank cannot write.
        Exception: On that rank, why it cannot.
    """
    failure: Exception | None = None
    if save is not None:
        try:
            with failed_save_told(process_set, note_told):
                save()
        except Exception as error:
            if is_known(error, None):
                raise
            failure = error  # After the others have given their parts.
    else:
        with failed_save_told(process_set, note_told):
            internals.run_through_weights_file(model)

    def look() -> tuple[None, None]:
        if failure is not None:
            raise failure
        return None, None

    gather_outcomes("DistributedOptimizer(shard_state)", look, process_set)


def save_if_due(
    model: keras.Model,
    process_set: ProcessSet,
    root_rank: int,
    decide: Callable[[], None],
) -> Exception | None:
    """The same, where that rank decides whether to save; collective.

    Args:
        model: The model.
        process_set: The ranks that train it together.
        root_rank: The one that writes.
        decide: Called there; calls `model.save` or `model.save_weights`, or does not.

    Returns:
        Why that rank could not decide, of which the others know nothing.

    Raises:
        RankMismatchError: On all ranks, if that rank cannot write; on the others, if it
            has left its `fit` before it could tell.
    """

    def tell(is_due: bool | None) -> bool:
        # One that leaves its `fit` while it decides, as by Ctrl-C, is not waited for.
        require_all_there(process_set)
        return bool(
            broadcast_object(
                is_due,
                root_rank=root_rank,
                name="saves_with_parts/due",
                process_set=process_set,
            )
        )

    if process_set.rank() != process_set.position_of(root_rank):
        while tell(None):
            save_with_parts(model, process_set, None)
        return None
    failure: Exception | None = None
    are_saving = False

    def with_others(save: Callable[[], Any]) -> None:
        nonlocal are_saving
        tell(True)
        are_saving = True
        save_with_parts(model, process_set, save)
        are_saving = False

    with _met_in_saves(model, with_others):
        try:
            decide()
        except Exception as error:
            if are_saving:  # The others have left with an error of their own.
                raise
            failure = error
    tell(False)
    return failure


@contextlib.contextmanager
def _met_in_saves(
    model: keras.Model, met: Callable[[Callable[[], Any]], None]
) -> Iterator[None]:
    """Has what saves this model inside, by its methods, go through a function."""
    names = ("save", "save_weights")
    before = {name: internals.replacement(model, name) for name in names}
    for name in names:
        save = getattr(model, name)

        def through(*args: Any, save: Callable[..., Any] = save, **kwargs: Any) -> None:
            met(functools.partial(save, *args, **kwargs))

        internals.replace(model, name, through)
    try:
        yield
    finally:
        for name in names:
            internals.restore(model, name)
            if before[name] is not None:
                internals.replace(model, name, before[name])
