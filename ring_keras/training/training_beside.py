"""Training in a callback of a `fit`: beside a batch that all ranks take, or none."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet, has_peers
from ring_keras.keras_internals import calls
from ring_keras.training.calls_under_way import calls_under_way
from ring_keras.training.epoch_agreement import EpochAgreement

__all__ = ["trains_with_all"]


def trains_with_all(
    method: Callable[..., Any], ranks_of: Callable[[keras.Model], ProcessSet | None]
) -> Callable[..., Any]:
    """A method of `keras.Model` that trains, and that callbacks may call, too.

    Args:
        method: It.
        ranks_of: The ranks that train a model; None if each does alone.
    """

    @functools.wraps(method)
    def train(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        process_set = ranks_of(model) if calls_under_way() else None
        if process_set is not None:
            _require_common_batch(process_set)
        return method(model, *args, **kwargs)

    return train


def _require_common_batch(process_set: ProcessSet) -> None:
    """Before these ranks train: if a callback has called, all take its batch.

    A rank whose `model.stop_training` is set begins no more batches, where the others,
    who do not know, begin one more. What they trained beside that they would train
    alone, and wait for the first one. So they ask before; collective in
    `on_train_batch_begin`.

    Args:
        process_set: The ranks that are about to train.

    Raises:
        RingKerasError: If a rank has stopped. It is told.
    """
    calling = calls.calling_event()
    if calling is None:
        return
    callbacks, event = calling
    agreement = EpochAgreement.of(callbacks)
    # Ranks of another set would ask some who do not train, and so do not ask.
    if agreement is None or agreement.process_set.key() != process_set.key():
        return
    if not has_peers(process_set) or "train_batch_" not in event:
        return
    if event.endswith("train_batch_begin"):
        agreement.ask_before_batch()
    if agreement.over:
        raise RingKerasError(
            "[RK609] a callback of fit() trains beside a batch that was none, as "
            "another rank has set model.stop_training, and does not train here. Train "
            "in on_epoch_end, or stop on all ranks."
        )
