"""What the ranks give to their calls of `fit`, and must have in common."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import keras
import numpy as np

from ring_keras import _native
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet

__all__ = [
    "class_weight_in_words",
    "refuse_metrics_of_some",
    "require_common_epoch",
    "require_common_values",
]


def require_common_values(
    values: Iterable[Any], what: str, remedy: str, process_set: ProcessSet
) -> None:
    """Raises if those that are known differ.

    Args:
        values: Of each rank; None: unknown.
        what: They are, in the plural.
        remedy: What every rank should be given the same of.
        process_set: The ranks, all of which know the values.

    Raises:
        RankMismatchError: On every rank.
    """
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
    require_common_values(epochs, "epoch", "initial_epoch of fit()", process_set)
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


def refuse_metrics_of_some(validating: list[int]) -> NoReturn:
    """Metrics of all ranks' data would have the others wait for all ranks.

    Args:
        validating: The ranks that have validation data.

    Raises:
        RankMismatchError: Always; called on every rank.
    """
    raise RankMismatchError(
        "[RK315] "
        "fit(): ring_keras.callbacks.MetricAverage makes metrics of all ranks' "
        f"data, but only ranks {validating} have validation_data. Give every rank "
        "its part, with ring_keras.data.shard()."
    )


def class_weight_in_words(class_weight: Any) -> str | None:
    """For a comparison; None if it is nothing that can be compared: Keras says so."""
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
