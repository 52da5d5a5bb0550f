"""Metrics that say themselves how the states of ranks make one."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["merged_by_themselves", "merging_metrics", "python_states_kept"]

# Methods of a metric.
_MERGE = "merge_ranks"
_STATE = "rank_state"


def merging_metrics(metrics: Iterable[keras.metrics.Metric]) -> list[Any]:
    """Those that have a method for it, also those of which others consist."""
    found = []
    for metric in metrics:
        if callable(getattr(metric, _MERGE, None)):
            found.append(metric)
        else:
            found += merging_metrics(internals.inner_metrics(metric))
    return found


@contextmanager
def merged_by_themselves(
    metrics: Sequence[Any], process_set: ProcessSet
) -> Iterator[None]:
    """Their state is that of all ranks inside, and this rank's after.

    Args:
        metrics: What `merging_metrics` found, the same on every rank.
        process_set: The ranks that have counted; all call this.

    Raises:
        RankMismatchError: If a metric fails to say what its state is.
    """
    if not metrics:
        yield
        return
    variables = [variable for metric in metrics for variable in metric.variables]
    values = [np.asarray(variable.numpy()) for variable in variables]

    def states() -> tuple[list[Any], list[Any]]:
        ours = [_state(metric) for metric in metrics]
        return ours, ours

    ours, everyones = gather_outcomes("callbacks.MetricAverage", states, process_set)
    try:
        for metric, of_ranks in zip(metrics, zip(*everyones, strict=True), strict=True):
            getattr(metric, _MERGE)(list(of_ranks))
        yield
    finally:
        _restore_python_states(metrics, ours)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


@contextmanager
def python_states_kept(metrics: Iterable[keras.metrics.Metric]) -> Iterator[None]:
    """Undoes what a block does to states that are not in variables.

    Variables may have other values afterwards.

    Args:
        metrics: A model's. Those count that say what their state is, and merge.
    """
    stating = [one for one in merging_metrics(metrics) if hasattr(one, _STATE)]
    before = list(map(_state, stating))
    yield
    _restore_python_states(stating, before)


def _restore_python_states(metrics: Sequence[Any], states: Sequence[Any]) -> None:
    for metric, own in zip(metrics, states, strict=True):
        if hasattr(metric, _STATE):
            getattr(metric, _MERGE)([own])


def _state(metric: Any) -> Any:
    if hasattr(metric, _STATE):
        return _plain(getattr(metric, _STATE)())
    return [np.asarray(variable.numpy()) for variable in metric.variables]


def _plain(value: Any) -> Any:
    """A copy, without what Keras makes of lists and dicts that are attributes."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    for kind in (list, tuple, set):
        if isinstance(value, kind):
            return kind(map(_plain, value))
    return value
