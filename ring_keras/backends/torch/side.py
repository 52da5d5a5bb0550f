"""What a membership is to torch."""

from __future__ import annotations

from ring_keras.backends.common.early_fits import watch_fits
from ring_keras.job.job import Job
from ring_keras.lifecycle.side import Side

__all__ = ["TorchSide"]


class TorchSide(Side):
    """Torch is left to load when it is used, and so is Keras."""

    def begin(self, job: Job) -> None:
        """Calls of `fit` may make the first thing that is distributed."""
        watch_fits()
