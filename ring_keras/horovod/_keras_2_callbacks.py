"""Horovod's callbacks for Keras 2; imported where `tf.keras` is that.

`device` is taken and means nothing.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import ring_keras as ring
from ring_keras.horovod import _callbacks
from ring_keras.horovod._absent import absent
from ring_keras.ops.broadcast_variables import broadcast_variables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Gives every rank one rank's variables: of the model, and of its optimizer.

    Before the first step; after it, where the model has no variables before that.

    Args:
        root_rank: The rank that sends.
        device: Ignored.
        local_variables: Those that stay as they are.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local = {variable.ref() for variable in local_variables or ()}
        self._done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts if it can."""
        self._done = False
        if self.model.built:
            self._broadcast()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Broadcasts what was not there before."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        optimizer = self.model.optimizer
        build = getattr(optimizer, "build", None) or optimizer._create_all_weights
        build(self.model.trainable_variables)
        variables = [*self.model.variables, *optimizer.variables()]
        operation = broadcast_variables(
            [v for v in variables if v.ref() not in self._local], self.root_rank
        )
        if operation is not None:  # Without eager execution.
            tf.compat.v1.keras.backend.get_session().run(operation)
        self._done = True


class MetricAverageCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Averages what the ranks log at the end of an epoch, each rank counting alike.

    As Horovod's does: exact for means of as many examples on each rank.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Puts the averages in place of this rank's numbers."""
        if logs is None:
            return
        mine = {name: float(v) for name, v in logs.items() if np.ndim(v) == 0}
        of_ranks = ring.allgather_object(mine, name="MetricAverageCallback")
        for name in mine:
            if all(name in one for one in of_ranks):
                logs[name] = float(np.mean([one[name] for one in of_ranks]))


class _LearningRate(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the rate that one of `ring_keras.callbacks` would set."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self._rule = rule

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Sets the rate of the step."""
        backend, optimizer = tf.keras.backend, self.model.optimizer
        self._rule.set_params(_with_steps(self.params))
        rate = self._rule.learning_rate_at(int(backend.get_value(optimizer.iterations)))
        before = float(backend.get_value(optimizer.learning_rate))
        if rate is None or np.float32(rate) == before:
            return
        backend.set_value(optimizer.learning_rate, rate)
        if self._rule.momentum_correction and before > 0.0:
            for velocity in _velocities(self.model):
                backend.set_value(
                    velocity, backend.get_value(velocity) * (rate / before)
                )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the rate."""
        rate = float(tf.keras.backend.get_value(self.model.optimizer.learning_rate))
        if logs is not None:
            logs["lr"] = rate


class LearningRateScheduleCallback(_LearningRate):
    """See `ring_keras.horovod._callbacks`, as for the arguments of the next."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(_callbacks.LearningRateScheduleCallback(*args, **kwargs))


class LearningRateWarmupCallback(_LearningRate):
    """See `ring_keras.horovod._callbacks`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        rule = _callbacks.LearningRateWarmupCallback(*args, **kwargs)
        super().__init__(rule)
        self._last_epoch = math.ceil(rule.warmup_epochs or 0) - 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the rate, and says that the ramp is over."""
        super().on_epoch_end(epoch, logs)
        if self._rule.verbose and epoch == self._last_epoch and ring.rank() == 0:
            print(f"Epoch {epoch + 1}: the learning rate has warmed up.")


class BestModelCheckpoint:
    """Not there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        absent(
            "BestModelCheckpoint for Keras 2",
            "Give fit() a ModelCheckpoint with save_best_only=True on rank 0.",
        )


def _with_steps(params: dict[str, Any]) -> dict[str, Any]:
    """What `fit` counts; without eager execution those are examples."""
    if params.get("steps") or not params.get("samples") or not params.get("batch_size"):
        return params
    return params | {"steps": math.ceil(params["samples"] / params["batch_size"])}


def _velocities(model: Any) -> list[Any]:
    """What holds gradients times the rate of their time; none before the first step."""
    if not model.built:
        return []
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if type(optimizer).__name__ != "SGD":
        return []
    if hasattr(optimizer, "get_slot"):  # Of the older kind.
        if "momentum" not in optimizer.get_slot_names():
            return []
        variables = model.trainable_variables
        return [optimizer.get_slot(variable, "momentum") for variable in variables]
    return list(getattr(optimizer, "momentums", ()))
