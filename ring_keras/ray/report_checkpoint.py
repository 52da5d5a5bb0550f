"""Keras's models as Ray Train's checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import ray.train

__all__ = ["ReportCheckpoint", "last_model"]

_MODEL = "model.keras"
_EPOCHS = "epochs"


class ReportCheckpoint(keras.callbacks.Callback):
    """Reports each epoch to Ray Train: its metrics, and the model with its optimizer.

    Rank 0 saves. Ray Train's own callback has every rank write the same file. Put
    `ring_keras.callbacks.MetricAverage` before it, since Ray Train keeps the metrics of
    rank 0. List it on all ranks: they wait for each other in `ray.train.report`.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves, and reports."""
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                self.model.save(Path(directory, _MODEL))
                checkpoint = ray.train.Checkpoint.from_directory(directory)
                checkpoint.set_metadata({_EPOCHS: epoch + 1})
            ray.train.report(metrics, checkpoint=checkpoint)


def last_model() -> tuple[keras.Model, int] | None:
    """What `ReportCheckpoint` saved last, in this training or what it goes on from.

    Call it after `ring_keras.init()`.

    Returns:
        The model, compiled as it was, and the epochs it has trained, for `fit`'s
        `initial_epoch`; None if there is none yet.
    """
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as directory:
        model = keras.models.load_model(Path(directory, _MODEL))
    return model, checkpoint.get_metadata()[_EPOCHS]
