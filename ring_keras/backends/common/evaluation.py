"""An `evaluate` that reports of all ranks' data, because a callback is there for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.states.metric_state import result_of_all_ranks
from ring_keras.training.calls_under_way import require_all_there

__all__ = ["reporting_all"]


@contextlib.contextmanager
def reporting_all(model: keras.Model, process_set: ProcessSet) -> Iterator[None]:
    """In it `evaluate` runs, on all these ranks."""

    def local(logs: Mapping[str, Any]) -> Mapping[str, Any]:
        result: Mapping[str, Any] = getattr(type(model), internals.METRICS_RESULT)(
            model, logs
        )
        return result

    def report(logs: Mapping[str, Any]) -> Mapping[str, Any]:
        require_all_there(process_set)
        return result_of_all_ranks(model, logs, local, process_set)

    # That of a `fit`, whose callback evaluates.
    before = internals.replacement(model, internals.METRICS_RESULT)
    internals.replace(model, internals.METRICS_RESULT, report)
    try:
        yield
    finally:
        # On JAX Keras has taken the values of variables, and keeps them if it fails.
        getattr(model, "jax_state_sync", lambda: None)()
        internals.restore(model, internals.METRICS_RESULT)
        if before is not None:
            internals.replace(model, internals.METRICS_RESULT, before)
