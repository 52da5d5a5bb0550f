"""Whether ranks train on the same data, and each has some."""

from __future__ import annotations

import hashlib
from typing import Any

import keras
import numpy as np
from absl import logging

from ring_keras.backends.common.joined_batches import StandIn
from ring_keras.config import keras_backend
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.objects import allgather_object

__all__ = ["compare_first_batches", "warn_of_same_data"]


def compare_first_batches(batch: Any, process_set: ProcessSet) -> None:
    """Before the first step of a `fit`; collective.

    Args:
        batch: Of this rank's first step.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank, if some have no batch.
    """
    digest = None if isinstance(batch, StandIn) else _digest(batch)
    digests = allgather_object(digest, name="fit/first", process_set=process_set)
    pairs = zip(process_set.ranks, digests, strict=True)
    lacking = [rank for rank, one in pairs if one is None]
    if lacking:
        raise RankMismatchError(
            f"[RK668] fit(): ranks {lacking} have no batch in their first epoch. With "
            f"Keras's back end {keras_backend().name} each rank needs one, to go on "
            "with when its data have ended: divide the data otherwise, or train on "
            "fewer ranks."
        )
    if len(set(digests)) == 1:
        warn_of_same_data("the first batch was the same", process_set)


def warn_of_same_data(came: str, process_set: ProcessSet) -> None:
    """Says so on the first rank.

    Args:
        came: How, in a clause.
        process_set: The ranks that train together.
    """
    if process_set.rank() != 0:
        return
    logging.warning(
        "ring_keras: [RK503] each rank should train on its own part of the data, "
        "but %s on all %d ranks, so an epoch trains on every example %d times. "
        "Divide arrays before fit(): x, y = ring_keras.data.shard((x, y)); a "
        "DataLoader by DistributedSampler(dataset, ring_keras.size(), "
        "ring_keras.rank()).",
        came,
        process_set.size(),
        process_set.size(),
    )


def _digest(batch: Any) -> str:
    digest = hashlib.sha256()
    for leaf in keras.tree.flatten(batch):
        if leaf is not None:
            array = np.asarray(keras.ops.convert_to_numpy(leaf))
            digest.update(f"{array.shape} {array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
