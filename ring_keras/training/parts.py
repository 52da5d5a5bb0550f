"""Data that are a rank's part."""

import warnings
import weakref
from typing import Any, TypeAlias

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.job.job import PerJob, current_job, job_or_none
from ring_keras.training.lone_updates import expect_averages

__all__ = ["is_joined", "is_part", "note_joined", "note_part"]

_ById: TypeAlias = weakref.WeakValueDictionary[int, Any]

_parts: PerJob[_ById] = PerJob(weakref.WeakValueDictionary)
_joined: PerJob[_ById] = PerJob(weakref.WeakValueDictionary)


def note_part(data: Any) -> None:
    """These are one rank's part: a `fit` of an optimizer of its own is told."""
    parts = _parts.of(current_job())
    expect_averages()
    for one in tf.nest.flatten(data):
        parts[id(one)] = one
        if isinstance(one, tf.data.Dataset):
            _expect_its_own_order()


def is_part(data: Any) -> bool:
    """Whether data are, or are made from, what `note_part` was given in this job."""
    job = job_or_none()
    if job is None:
        return False
    is_dataset = isinstance(data, tf.data.Dataset)
    sources = internals.upstream(data) if is_dataset else tf.nest.flatten(data)
    return any(_parts.of(job).get(id(one)) is one for one in sources)


def note_joined(data: tf.data.Dataset) -> None:
    """These ask the other ranks for each batch whether there is one."""
    _joined.of(current_job())[id(data)] = data


def is_joined(data: Any) -> bool:
    """Whether data are, or are made from, what `note_joined` was given in this job."""
    joined = _joined.of(current_job())
    return any(joined.get(id(one)) is one for one in internals.upstream(data))


def _expect_its_own_order() -> None:
    """Keras says of `fit`'s default that it does not shuffle, as if nobody had."""
    warnings.filterwarnings(
        "ignore", "`shuffle=True` was passed, but will be ignored .* tf.data.Dataset"
    )
