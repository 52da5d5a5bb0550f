"""Sets the learning rate of every step from a function of the step's number."""

import abc
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.callbacks.momentum import scale_momentum
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.lifecycle.elastic_launcher import is_elastic
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit, Moment
from ring_keras.training.distributed_models import process_set_of

__all__ = ["LearningRateRule"]


class LearningRateRule(keras.callbacks.Callback, abc.ABC):
    """Base of the learning rate callbacks.

    The rate is a pure function of the number of steps that the optimizer has
    taken, so a restored run goes on where it stopped. It is kept in the optimizer's
    own variable, so saved files stay ordinary ones, and other callbacks may set it
    outside of the steps that the rule covers.

    A step is a batch here, as in the epochs of `fit`, also where the optimizer
    accumulates gradients and updates only after several. A model's own optimizers,
    as those of a GAN, all get the rate; they must begin with one.

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
    counts_every_batch = True

    def __init__(self, momentum_correction: bool) -> None:
        super().__init__()
        self.momentum_correction = momentum_correction
        self._table: tf.Variable | None = None
        self._first_step: tf.Variable | None = None
        self._optimizers: list[keras.optimizers.Optimizer] = []
        # Of one call of `fit`: its first epoch, and the batches that it has had.
        self._initial_epoch: int | None = None
        self._steps_now = self._steps_before = 0
        self._batches = 0
        self._batches_before_epoch = 0

    @abc.abstractmethod
    def learning_rate_at(self, step: int) -> float | None:
        """The rate for the step after `step` others; None leaves it alone.

        Steps that only accumulate gradients count like others.
        """

    def steps_per_update(self) -> int:
        """How many steps an optimizer takes for one update."""
        passes = [one.gradient_accumulation_steps for one in self._optimizers]
        return max((int(count) for count in passes if count), default=1)

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
            # A rate may follow from the number of ranks, and from a restored step.
            fit.when(
                Moment.RANKS_HAVE_CHANGED, self, lambda: self.on_train_batch_begin(0)
            )
            fit.when(Moment.RANKS_ARE_ALIKE, self, lambda: self.on_train_batch_begin(0))
        self._remove_table()  # A fit that failed may have left one.
        self._initial_epoch = None
        self._batches = self._batches_before_epoch = 0
        training = internals.training_optimizers(self.model)
        self._optimizers = internals.innermost(training)
        self._require_one_rate()
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

    def _require_one_rate(self) -> None:
        name = type(self).__name__
        rates = {}
        for optimizer in self._optimizers:
            if not internals.is_keras_variable(optimizer.learning_rate):
                raise ValueError(
                    "[RK621] "
                    f"{name} sets the learning rate, but the optimizer "
                    f"'{optimizer.name}' follows a LearningRateSchedule or a callable. "
                    "Give the optimizer a float learning_rate, or drop the callback. "
                    f"Received: {optimizer.get_config().get('learning_rate')}"
                )
            rates[float(optimizer.learning_rate.numpy())] = optimizer.name
        if len(rates) != 1:
            found = [f"'{owner}' has {rate:g}" for rate, owner in rates.items()]
            raise ValueError(
                "[RK621] "
                f"{name} sets one learning rate, but the model's optimizers have "
                f"{len(rates)}: {', '.join(found) or 'there is no optimizer'}. Give "
                "them the same, or each a ring_keras.schedules.Warmup in place of the "
                "callback."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the batches of this `fit`, and notes where it began."""
        if self._initial_epoch is None:
            self._initial_epoch = epoch
        self._batches_before_epoch = self._batches

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Counts."""
        self._batches = self._batches_before_epoch + batch + 1

    def steps_taken(self) -> int:
        """How many steps the optimizers have taken."""
        counts = [int(internals.iterations(one)) for one in self._optimizers]
        if len(set(counts)) > 1 and not self._may_skip():
            names = [optimizer.name for optimizer in self._optimizers]
            raise ValueError(
                "[RK621] "
                f"{type(self).__name__} counts steps, but the model's optimizers "
                f"{names} have taken different numbers: {counts}. Give each a "
                "ring_keras.schedules.Warmup in place of the callback."
            )
        self._steps_now = max(counts)
        if not self._batches:
            self._steps_before = self._steps_now
        return self._steps_now

    def steps_since_first_epoch(self, step: int) -> int:
        """The same, if the optimizer had taken those of earlier epochs, as long as now.

        `fit(initial_epoch=...)` may begin with a new one, or with one that has taken
        more steps in an epoch, on fewer ranks.
        """
        if not self._initial_epoch or is_elastic():  # Epochs have other numbers there.
            return step
        # The epochs of `fit`, whatever this callback is to take for one.
        per_epoch = (self.params or {}).get("steps") or self.known_steps_per_epoch()
        ahead = step - self._steps_now
        by_epochs = self._initial_epoch * per_epoch + self._batches + ahead
        if self._steps_before >= (self._initial_epoch + 1) * per_epoch:
            return by_epochs
        return max(step, by_epochs)

    def _may_skip(self) -> bool:
        """Whether an optimizer skips steps whose gradients are not finite."""
        return any(
            isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
            for optimizer in internals.training_optimizers(self.model)
        )

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Sets the rate of the next step, or of the next few."""
        step = self.steps_taken()
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
            logs["learning_rate"] = self.learning_rate()

    def process_set(self) -> ProcessSet:
        """The ranks that train the model."""
        if self.model is None:  # Of Keras 2, whose callbacks ask for the rate alone.
            return global_process_set
        return process_set_of(self.model)

    def learning_rate(self) -> float:
        """What it is now."""
        return float(self._optimizers[0].learning_rate.numpy())

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Takes the table out of the step again."""
        self._remove_table()

    def _set(self, rate: float) -> None:
        for optimizer in self._optimizers:
            variable = optimizer.learning_rate
            before = float(variable.numpy())
            if np.float32(rate) == before:
                continue
            # The optimizer's setter does the same, and takes 0.1 ms a step.
            variable.assign(rate)
            if self.momentum_correction and before > 0.0:
                scale_momentum(optimizer, rate / before)

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
        counts = [internals.iterations(one).value for one in self._optimizers]
        step = tf.reduce_max([tf.cast(count, tf.int64) for count in counts])
        place = step - self._first_step
        last = tf.size(self._table, tf.int64) - 1
        rate = tf.gather(self._table, tf.clip_by_value(place, 0, last))
        # A callback may take steps of its own, by train_on_batch().
        rate = tf.where(tf.logical_and(place >= 0, place <= last), rate, math.nan)
        for optimizer in self._optimizers:
            self._assign(optimizer, rate)

    def _assign(self, optimizer: keras.optimizers.Optimizer, rate: tf.Tensor) -> None:
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
