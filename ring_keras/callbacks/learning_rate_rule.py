"""Sets the learning rate of every step from a function of the step's number."""

import abc
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.callbacks.momentum import scale_momentum
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit

__all__ = ["LearningRateRule"]


class LearningRateRule(keras.callbacks.Callback, abc.ABC):
    """Base of the learning rate callbacks.

    The rate is a pure function of `optimizer.iterations`, so a restored run
    goes on where it stopped. It is kept in the optimizer's own variable, so
    saved files stay ordinary ones, and other callbacks may set it outside of
    the steps that the rule covers.

    With `steps_per_execution=n`, Keras calls back every n steps only. The rates
    of the next n steps are then put into a table beforehand, from which each
    step takes its own.

    The momentum of `SGD` and of `RMSprop` holds earlier gradients times the rate
    of their time. It is scaled along with the rate, so that they count as if they
    had been taken with the new one. Source: Goyal et al. 2017, section 3,
    arXiv:1706.02677.

    Args:
        momentum_correction: Whether to scale momentum.
    """

    steps_per_epoch: int | None = None
    same_on_all_ranks = True
    """Its attributes: else ranks would train at different rates."""

    def __init__(self, momentum_correction: bool) -> None:
        super().__init__()
        self.momentum_correction = momentum_correction
        self._table: tf.Variable | None = None
        self._first_step: tf.Variable | None = None

    @abc.abstractmethod
    def learning_rate_at(self, step: int) -> float | None:
        """The rate for the step after `step` updates; None leaves it alone."""

    def known_steps_per_epoch(self) -> int:
        """As given, or else as `fit` counts them."""
        steps = self.steps_per_epoch or (self.params or {}).get("steps")
        if not steps:
            raise ValueError(
                "[RK621] "
                f"{type(self).__name__} counts epochs, but fit() does not know how "
                "many steps one has, as with a generator. Pass steps_per_epoch to "
                "the callback."
            )
        return int(steps)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that the rate can be set, and makes room for the table."""
        fit = DistributedFit.begin(self)
        if fit is not None:
            # A rate may follow from the number of ranks.
            fit.when_ranks_have_changed(self, lambda: self.on_train_batch_begin(0))
        self._remove_table()  # A fit that failed may have left one.
        optimizer = self.model.optimizer
        if not internals.is_keras_variable(optimizer.learning_rate):
            raise ValueError(
                "[RK621] "
                f"{type(self).__name__} sets the learning rate, but the optimizer "
                f"'{optimizer.name}' follows a LearningRateSchedule or a callable. "
                "Give the optimizer a float learning_rate, or drop the callback. "
                f"Received: {optimizer.get_config().get('learning_rate')}"
            )
        count = self.model.steps_per_execution
        if count == 1:
            attach(self.model)
            return
        self._table = tf.Variable(
            tf.fill([count], math.nan), trainable=False, dtype=tf.float32
        )
        self._first_step = tf.Variable(0, trainable=False, dtype=tf.int64)
        step, _ = attach(self.model, retrace=True)
        step.prologues_of_fits.append((fit, self._assign_from_table))

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Sets the rate of the next step, or of the next few."""
        step = int(self.model.optimizer.iterations)
        if self._table is None or self._first_step is None:
            rate = self.learning_rate_at(step)
            if rate is not None:
                self._set(rate)
            return
        count = int(self._table.shape[0])
        rates = [self.learning_rate_at(step + offset) for offset in range(count)]
        self._table.assign([math.nan if rate is None else rate for rate in rates])
        self._first_step.assign(step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the rate to the epoch's logs, as Keras's own scheduler does."""
        if logs is not None:
            logs["learning_rate"] = float(self.model.optimizer.learning_rate.numpy())

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Takes the table out of the step again."""
        self._remove_table()

    def _set(self, rate: float) -> None:
        variable = self.model.optimizer.learning_rate
        before = float(variable.numpy())
        if np.float32(rate) == before:
            return
        # The optimizer's setter does the same, and takes 0.1 ms a step.
        variable.assign(rate)
        if self.momentum_correction and before > 0.0:
            scale_momentum(self.model.optimizer, rate / before)

    def _remove_table(self) -> None:
        if self._table is None:
            return
        self._table = self._first_step = None
        step, _ = attach(self.model, retrace=True)
        step.prologues_of_fits = [
            (fit, prologue)
            for fit, prologue in step.prologues_of_fits
            if prologue != self._assign_from_table
        ]

    def _assign_from_table(self) -> None:
        """Part of the traced step."""
        assert self._table is not None and self._first_step is not None
        optimizer = self.model.optimizer
        step = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64)
        place = step - self._first_step
        last = tf.size(self._table, tf.int64) - 1
        rate = tf.gather(self._table, tf.clip_by_value(place, 0, last))
        # A callback may take steps of its own, by train_on_batch().
        rate = tf.where(tf.logical_and(place >= 0, place <= last), rate, math.nan)
        before = tf.convert_to_tensor(optimizer.learning_rate)
        rate = tf.cast(rate, before.dtype)
        rate = tf.where(tf.math.is_nan(rate), before, rate)
        optimizer.learning_rate.assign(rate)
        if self.momentum_correction and internals.velocities(optimizer):
            changes = tf.logical_and(before > 0.0, rate != before)
            tf.cond(
                changes,
                lambda: scale_momentum(optimizer, rate / before),
                lambda: None,
            )
