"""Callbacks of `ring_keras.callbacks`, with Horovod's names and arguments.

`device` is taken and means nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ring_keras import callbacks
from ring_keras.job.process_set import global_process_set
from ring_keras.job.topology import size

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(callbacks.BroadcastGlobalVariables):
    """See `ring_keras.callbacks.BroadcastGlobalVariables`."""

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(root_rank, local_variables=local_variables or ())


class MetricAverageCallback(callbacks.MetricAverage):
    """See `ring_keras.callbacks.MetricAverage`."""

    def __init__(self, device: str = "") -> None:
        super().__init__()


class LearningRateScheduleCallback(callbacks.LearningRateSchedule):
    """See `ring_keras.callbacks.LearningRateSchedule`.

    Args:
        initial_lr: The rate for the whole job; `multiplier` multiplies it.
        multiplier: See `LearningRateSchedule`, and so the rest.
        start_epoch: See there.
        end_epoch: See there.
        staircase: See there.
        momentum_correction: See there.
        steps_per_epoch: See there.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=start_epoch,
            end_epoch=end_epoch,
            staircase=staircase,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
            scale=1.0,
        )


class LearningRateWarmupCallback(callbacks.LearningRateWarmup):
    """See `ring_keras.callbacks.LearningRateWarmup`.

    Args:
        initial_lr: The rate for the whole job, with which the ramp ends; it
            begins with that over the number of ranks.
        warmup_epochs: See `LearningRateWarmup`, and so the rest.
        momentum_correction: See there.
        steps_per_epoch: See there.
        verbose: See there.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr / size(),
            warmup_epochs=warmup_epochs,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
            verbose=verbose,
        )
        self._initial_lr = initial_lr

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Where a process set trains, the ramp is that of its ranks."""
        members = self.process_set()
        if members is not global_process_set:
            self.base_lr = self._initial_lr / members.size()
        super().on_train_begin(logs)


class BestModelCheckpoint(callbacks.BestModelCheckpoint):
    """See `ring_keras.callbacks.BestModelCheckpoint`."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            monitor=monitor,
            verbose=verbose,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
