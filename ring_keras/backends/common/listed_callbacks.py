"""What a call of `fit` or `evaluate` has in its list of callbacks, of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from ring_keras.backends.common.hook import process_set_of
from ring_keras.callbacks.distributed import Distributed
from ring_keras.callbacks.learning_rate_rule import LearningRateRule
from ring_keras.job.job import current_job

__all__ = [
    "Callbacks",
    "listed",
    "meets",
    "taken",
    "with_parts",
]

Callbacks = Sequence[keras.callbacks.Callback]


def listed(given: Any) -> list[keras.callbacks.Callback]:
    """The callbacks in the argument of that name."""
    is_list = isinstance(given, keras.callbacks.CallbackList)
    own = given.callbacks if is_list else keras.tree.flatten(given)
    return [one for one in own if one is not None]


def meets(callbacks: Callbacks, method: str) -> bool:
    """Whether the ranks meet in a call with these, whatever optimizers there are."""
    return any(
        method in getattr(one, "ranks_meet_in", ())
        or (method == "fit" and isinstance(one, LearningRateRule))
        for one in callbacks
    )


def with_parts(callbacks: Callbacks, model: keras.Model) -> Callbacks:
    """These, and behind a `Distributed` what it adds, but what `fit` does anyway."""
    distributed = _distributed(callbacks)
    if distributed is None:
        return callbacks
    current_job()  # There must be one: each rank would train alone.
    root = distributed.root_rank
    root = process_set_of(model).ranks[0] if root is None else root
    parts = [
        part
        for part in distributed.missing_parts([*callbacks], root)
        if part is not distributed.metrics
    ]
    place = callbacks.index(distributed) + 1
    return [*callbacks[:place], *parts, *callbacks[place:]]


@contextlib.contextmanager
def taken(given: Any, callbacks: Callbacks) -> Iterator[Any]:
    """The argument of `fit` that has these in place of what was given.

    A list with a model is the program's own: it gets them, for as long as this lasts.
    """
    if not isinstance(given, keras.callbacks.CallbackList):
        yield callbacks
        return
    before = list(given.callbacks)
    for callback in callbacks:
        if callback not in before:
            callback.set_model(given.model)
            callback.set_params(given.params)
    given.callbacks[:] = callbacks
    try:
        yield given
    finally:
        given.callbacks[:] = before


def _distributed(callbacks: Callbacks) -> Distributed | None:
    return next((one for one in callbacks if isinstance(one, Distributed)), None)
