"""What the ranks' calls of `fit` must have in common."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.keras_internals import calls
from ring_keras.optimizers.meeting_hook import require_same_terms
from ring_keras.optimizers.optimizer_hook import Terms
from ring_keras.training.common_values import (
    class_weight_in_words,
    require_common_values,
)
from ring_keras.values.objects import allgather_object

__all__ = ["require_common_fit"]


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
        class_weight = class_weight_in_words(run.class_weight)
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
        require_common_values(values, what, remedy, process_set)
    for (name, _), *terms in zip(optimizers, *everyones_terms, strict=True):
        require_same_terms(name, terms, process_set)
    return None not in batch_counts and len(set(batch_counts)) == 1
