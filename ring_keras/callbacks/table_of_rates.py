"""The learning rates of steps on TensorFlow, of which several may run as one graph."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.callbacks.momentum import scale_momentum
from ring_keras.callbacks.step_rates import Rule, StepRates
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit, Moment

__all__ = ["TableOfRates"]


class TableOfRates(StepRates):
    """Puts the rates of an execution into a table, from which each step takes its own.

    Where an execution is one step, it sets the rate.
    """

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self._table: tf.Variable | None = None
        self._first_step: tf.Variable | None = None
        callback: Any = rule
        self._fit = fit = DistributedFit.begin(callback)
        if fit is not None:
            # A rate may follow from the number of ranks, and from a restored step.
            fit.when(Moment.RANKS_HAVE_CHANGED, callback, self.before_batch)
            fit.when(Moment.RANKS_ARE_ALIKE, callback, self.before_batch)

    def begin(self) -> None:
        """Makes room for the table."""
        model = self.rule.model
        count = model.steps_per_execution
        if count == 1:
            attach(model)
            return
        self._table = tf.Variable(
            tf.fill([count], math.nan), trainable=False, dtype=tf.float32
        )
        self._first_step = tf.Variable(0, trainable=False, dtype=tf.int64)
        step, _ = attach(model, retrace=True)
        step.prologues_of_fits.append((self._fit, self._assign_from_table))

    def before_batch(self) -> None:
        """Sets the rate of the next step, or of the next few."""
        if self._table is None or self._first_step is None:
            super().before_batch()
            return
        step = self.rule.steps_taken()
        count = int(self._table.shape[0])
        rates = [self.rule.learning_rate_at(step + offset) for offset in range(count)]
        self._table.assign([math.nan if rate is None else rate for rate in rates])
        self._first_step.assign(step)

    def end(self) -> None:
        """Takes the table out of the step again."""
        if self._table is None:
            return
        self._table = self._first_step = None
        step, _ = attach(self.rule.model, retrace=True)
        step.prologues_of_fits = [
            (fit, prologue)
            for fit, prologue in step.prologues_of_fits
            if prologue != self._assign_from_table
        ]

    def scale_momentum(
        self, optimizer: keras.optimizers.Optimizer, factor: float
    ) -> None:
        """In one graph for all variables."""
        scale_momentum(optimizer, factor)

    def _assign_from_table(self) -> None:
        """Part of the traced step."""
        assert self._table is not None and self._first_step is not None
        optimizers = self.rule.optimizers
        counts = [internals.iterations(one).value for one in optimizers]
        step = tf.reduce_max([tf.cast(count, tf.int64) for count in counts])
        place = step - self._first_step
        last = tf.size(self._table, tf.int64) - 1
        rate = tf.gather(self._table, tf.clip_by_value(place, 0, last))
        # A callback may take steps of its own, by train_on_batch().
        rate = tf.where(tf.logical_and(place >= 0, place <= last), rate, math.nan)
        for optimizer in optimizers:
            self._assign(optimizer, rate)

    def _assign(self, optimizer: keras.optimizers.Optimizer, rate: tf.Tensor) -> None:
        before = tf.convert_to_tensor(optimizer.learning_rate)
        rate = tf.cast(rate, before.dtype)
        rate = tf.where(tf.math.is_nan(rate), before, rate)
        optimizer.learning_rate.assign(rate)
        if self.rule.momentum_correction and internals.velocities(optimizer):
            changes = tf.logical_and(before > 0.0, rate != before)
            tf.cond(
                changes,
                lambda: scale_momentum(optimizer, rate / before),
                lambda: None,
            )
