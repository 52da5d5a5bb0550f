"""Takes the place of `horovod.keras.callbacks`."""

from ring_keras.horovod import _callbacks
from ring_keras.horovod._callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BestModelCheckpoint(_callbacks.BestModelCheckpoint):
    """See `ring_keras.callbacks.BestModelCheckpoint`."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(monitor, verbose, False, mode, save_freq)
