"""What the ranks' calls of `fit` must have in common."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.keras_internals import calls
from ring_keras.optimizers.meeting_hook import require_same_terms
from ring_keras.optimizers.optimizer_hook import Terms
from ring_keras.values.objects import allgather_object

__all__ = ["require_common_epoch", "require_common_fit"]


def require_common_fit(
    model: keras.Model,
    params: Mapping[str, Any],
    batch_count: float | str | None,
    callbacks: Iterable[str],
    process_set: ProcessSet,
    *,
    run: calls.Run | None,
    optimizers: Sequence[tuple[str, Terms]],
) -> bool:
    """Raises if the ranks would wait for each other somewhere in `fit`; collective.

    Args:
        model: Which is trained.
        params: What Keras tells callbacks of this call.
        batch_count: How many batches the data have; None if that is unknown, and words
            if they end with those of the other ranks.
        callbacks: Names of those in it that ask other ranks.
        process_set: The ranks that train together.
        run: The call; None if it is not known.
        optimizers: The name of each that the ranks train with, and its terms.

    Returns:
        Whether no rank runs out of data before another does.

    Raises:
        RankMismatchError: On every rank.
    """
    validation_freq = class_weight = None
    if run is not None:
        class_weight = _class_weight_in_words(run.class_weight)
        if run.validation_data is not None:
            validation_freq = str(run.validation_freq)
    # What it is, its value, and of what it is. Values are as they are: the others wait
    # for this rank, whatever it was given.
    compared = [
        ("epochs", params.get("epochs"), "epochs of fit()"),
        (
            "steps per epoch",
            params.get("steps"),
            "number of batches: the same batch size, and data divided with "
            "ring_keras.data.shard(); or join ranks whose data end earlier with "
            "ring_keras.data.join()",
        ),
        (
            "values of steps_per_execution",
            model.steps_per_execution,
            "steps_per_execution in compile()",
        ),
        (
            "values of validation_freq",
            validation_freq,
            "validation_freq in fit()",
        ),
        (
            "class weights",
            class_weight,
            "class_weight in fit(), counted in all of the data",
        ),
        (
            "numbers of losses that add up their batch",
            len(internals.summed_losses(model)),
            "losses, with the same reduction, in compile()",
        ),
        ("numbers of distributed optimizers", len(optimizers), "optimizers"),
        ("callbacks", sorted(callbacks), "callbacks of ring_keras in fit()"),
    ]
    calls = allgather_object(
        [
            [value for _, value, _ in compared],
            [terms for _, terms in optimizers],
            batch_count,
        ],
        name="fit",
        process_set=process_set,
    )
    everyones, everyones_terms, batch_counts = zip(*calls, strict=True)
    for (what, _, remedy), *values in zip(compared, *everyones, strict=True):
        _require_equal(values, what, remedy, process_set)
    for (name, _), *terms in zip(optimizers, *everyones_terms, strict=True):
        require_same_terms(name, terms, process_set)
    return None not in batch_counts and len(set(batch_counts)) == 1


def require_common_epoch(
    epoch: int,
    optimizers: Sequence[keras.optimizers.Optimizer],
    process_set: ProcessSet,
) -> None:
    """Raises on every rank if they would begin an epoch differently; collective.

    Args:
        epoch: Its number.
        optimizers: Those whose learning rates all ranks have in common by now.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank.
    """
    rates = [_learning_rate(optimizer) for optimizer in optimizers]
    rows = _native.allgather(
        np.array([[epoch, *rates]], np.float64),
        "fit/epoch",
        process_set.communicator_id(),
    )
    epochs = rows[:, 0].astype(int).tolist()
    _require_equal(epochs, "epoch", "initial_epoch of fit()", process_set)
    for optimizer, of_ranks in zip(optimizers, rows[:, 1:].T, strict=True):
        differ = np.flatnonzero(of_ranks != of_ranks[0])
        if differ.size and not np.isnan(of_ranks).any():
            ranks = process_set.ranks
            raise RankMismatchError(
                "[RK341] "
                f"fit(): before epoch {epoch + 1} the learning rates of optimizer "
                f"'{optimizer.name}' differ across ranks: rank {ranks[0]} has "
                f"{of_ranks[0]:g}, rank {ranks[differ[0]]} has "
                f"{of_ranks[differ[0]]:g}. Give callbacks that set it, such as "
                "ReduceLROnPlateau, to every rank, and validation data too; or set it "
                "on all ranks alike."
            )


def _class_weight_in_words(class_weight: Any) -> str | None:
    """None if it is nothing that can be compared: Keras says so later."""
    if class_weight is None:
        return "none"
    try:
        weights = {int(key): float(value) for key, value in class_weight.items()}
    except (AttributeError, TypeError, ValueError):
        return None
    # Counted in another order, they may differ in the last bit.
    return str({key: float(f"{weights[key]:.6g}") for key in sorted(weights)})


def _learning_rate(optimizer: keras.optimizers.Optimizer) -> float:
    """NaN if it follows a schedule, from steps that all ranks have in common."""
    rate = optimizer.learning_rate
    return float(rate.numpy()) if isinstance(rate, keras.Variable) else math.nan


def _require_equal(
    values: Iterable[Any], what: str, remedy: str, process_set: ProcessSet
) -> None:
    known = [
        (rank, value)
        for rank, value in zip(process_set.ranks, values, strict=True)
        if value is not None
    ]
    for rank, value in known:
        if value != known[0][1]:
            raise RankMismatchError(
                "[RK326] "
                f"fit(): {what} differ across ranks: rank {known[0][0]} has "
                f"{known[0][1]}, rank {rank} has {value}. Give every rank the same "
                f"{remedy}."
            )
