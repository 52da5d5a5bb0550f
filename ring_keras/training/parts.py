"""Data that are a rank's part."""

import warnings
import weakref
from collections import defaultdict
from typing import Any, TypeAlias

import tensorflow as tf
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.job.job import PerJob, current_job, job_or_none
from ring_keras.job.process_set import ProcessSet
from ring_keras.training.lone_updates import expect_averages

__all__ = [
    "is_extended",
    "is_joined",
    "is_part",
    "note_extended",
    "note_joined",
    "note_part",
    "warn_of_parts_of_others",
]

_ById: TypeAlias = weakref.WeakValueDictionary[int, Any]

# By the ranks that have one each.
_parts: PerJob[defaultdict[tuple[int, ...], _ById]] = PerJob(
    lambda: defaultdict(weakref.WeakValueDictionary)
)
_joined: PerJob[_ById] = PerJob(weakref.WeakValueDictionary)
_extended: PerJob[_ById] = PerJob(weakref.WeakValueDictionary)


def note_part(data: Any, process_set: ProcessSet) -> None:
    """These are one rank's part: a `fit` of an optimizer of its own is told.

    Args:
        data: What there is of them.
        process_set: The ranks that have the others.
    """
    parts = _parts.of(current_job())[tuple(process_set.ranks)]
    expect_averages()
    for one in tf.nest.flatten(data):
        parts[id(one)] = one
        if isinstance(one, tf.data.Dataset):
            _expect_its_own_order()


def is_part(data: Any) -> bool:
    """Whether data are, or are made from, what `note_part` was given in this job."""
    return _ranks_of_parts(data) is not None


def _ranks_of_parts(data: Any) -> tuple[int, ...] | None:
    """The ranks that have a part of these each; None if nobody has divided them."""
    job = job_or_none()
    if job is None:
        return None
    is_dataset = isinstance(data, tf.data.Dataset)
    sources = list(internals.upstream(data) if is_dataset else tf.nest.flatten(data))
    for ranks, parts in _parts.of(job).items():
        if any(one is not None and parts.get(id(one)) is one for one in sources):
            return ranks
    return None


def warn_of_parts_of_others(
    data: Any, validation_data: Any, process_set: ProcessSet
) -> None:
    """If a call trains on these ranks what was divided among others.

    Args:
        data: What it trains on.
        validation_data: What it is tested on; None if it is not.
        process_set: The ranks that train together.
    """
    ours = tuple(process_set.ranks)
    for name, one in (("x", data), ("validation_data", validation_data)):
        divided = _ranks_of_parts(one)
        if divided not in (None, ours) and process_set.rank() == 0:
            logging.warning(
                "ring_keras: [RK521] fit() trains on ranks %s, and its %s was divided "
                "among ranks %s: %s. Pass the optimizer's process_set to "
                "ring_keras.data.shard(), too.",
                list(ours),
                name,
                list(divided),
                "some of it is on ranks that do not train"
                if set(divided) - set(ours)
                else "some ranks have none of it, or the same part as others",
            )


def note_joined(data: tf.data.Dataset) -> None:
    """These ask the other ranks for each batch whether there is one."""
    _joined.of(current_job())[id(data)] = data


def is_joined(data: Any) -> bool:
    """Whether data are, or are made from, what `note_joined` was given in this job."""
    joined = _joined.of(current_job())
    return any(joined.get(id(one)) is one for one in internals.upstream(data))


def note_extended(data: tf.data.Dataset) -> None:
    """These have empty batches where this rank's have ended before those of others."""
    _extended.of(current_job())[id(data)] = data


def is_extended(data: Any) -> bool:
    """The same as `is_joined`, of `note_extended`."""
    extended = _extended.of(current_job())
    return any(extended.get(id(one)) is one for one in internals.upstream(data))


def _expect_its_own_order() -> None:
    """Keras says of `fit`'s default that it does not shuffle, as if nobody had."""
    warnings.filterwarnings(
        "ignore", "`shuffle=True` was passed, but will be ignored .* tf.data.Dataset"
    )
