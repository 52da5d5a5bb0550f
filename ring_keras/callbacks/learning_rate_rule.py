"""Sets the learning rate of every step from a function of the step's number."""

import abc
import itertools
from collections.abc import Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.callbacks.fit_side import fit_side
from ring_keras.callbacks.step_rates import StepRates
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.keras_internals import calls
from ring_keras.lifecycle.elastic_launcher import is_elastic

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

    With `steps_per_execution=n`, Keras calls back every n steps only. Each step still
    has a rate of its own: see `StepRates`.

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
        self.optimizers: list[keras.optimizers.Optimizer] = []
        """Those that get the rate, from the beginning of `fit`."""
        self.rates: StepRates | None = None
        """Of the `fit` that is under way."""
        self._trained: keras.Model | None = None
        self._skips = False
        # Of one call of `fit`: its first epoch, and the batches that it has had.
        self._initial_epoch: int | None = None
        self._goes_on_by_steps = False
        self._steps_now = self._steps_before = 0
        self._batches = 0
        self._batches_before_epoch = 0
        # After its first executions: the batches, and the steps of the optimizers.
        self._first_counts: list[tuple[int, int]] = []
        fit_side().prepare_callbacks()

    @abc.abstractmethod
    def learning_rate_at(self, step: int) -> float | None:
        """The rate for the step after `step` others; None leaves it alone.

        Steps that only accumulate gradients count like others.
        """

    @property
    def counts_epochs(self) -> bool:
        """Whether the rate follows from the epoch."""
        return True

    def steps_per_update(self) -> int:
        """How many steps an optimizer takes for one update."""
        passes = [one.gradient_accumulation_steps for one in self.optimizers]
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

    def set_model(self, model: keras.Model) -> None:
        """That which `fit` trains."""
        super().set_model(model)
        # On JAX, to ask for `self.model` within a step would undo the step.
        self._trained = model

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that the rate can be set."""
        rates = fit_side().step_rates(self)
        if self.rates is not None:
            self.rates.end()  # Of a fit that failed.
        self.rates = rates
        self._initial_epoch = None
        self._batches = self._batches_before_epoch = 0
        self._first_counts = []
        training = internals.training_optimizers(self.model)
        self._skips = any(
            isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
            for optimizer in training
        )
        self.optimizers = internals.innermost(training)
        self._require_one_rate()
        rates.begin()

    def _require_one_rate(self) -> None:
        name = type(self).__name__
        rates = {}
        for optimizer in self.optimizers:
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
            self._goes_on_by_steps = self._is_resumed_by_steps()
        elif self._may_have_passed_the_end():
            taken = self.steps_taken() - self._steps_before
            self._batches = min(self._batches, taken)
        self._batches_before_epoch = self._batches

    def _may_have_passed_the_end(self) -> bool:
        """Whether batches may have been counted that the last epoch has not had.

        Its last execution has fewer than Keras says. The optimizers know, unless they
        have skipped some.
        """
        assert self.rates is not None and self._trained is not None
        return (
            not (self.params or {}).get("steps")
            and not self.rates.counts_batches
            and not self._skips
            and self._trained.steps_per_execution > 1
        )

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Counts, unless each step has been counted."""
        assert self.rates is not None
        if self.rates.counts_batches:
            return
        # The last execution of an epoch has no more steps than the epoch.
        steps = (self.params or {}).get("steps") or batch + 1
        self._batches = self._batches_before_epoch + min(batch + 1, steps)
        if self.counts_epochs and not self.steps_per_epoch and not is_elastic():
            self._require_one_step_of_batch()

    def _require_one_step_of_batch(self) -> None:
        """Refuses to tell epochs by steps where `fit` counts fewer batches.

        A callback may take a single step in between.
        """
        if len(self._first_counts) > 2:
            return
        self._first_counts.append((self._batches, self.steps_taken()))
        taken = [
            (later - earlier, after - before)
            for (earlier, before), (later, after) in itertools.pairwise(
                self._first_counts
            )
        ]
        if len(taken) < 2 or any(steps <= batches for batches, steps in taken):
            return
        batches, steps = taken[-1]
        raise ValueError(
            "[RK621] "
            f"{type(self).__name__} tells epochs by the optimizer's steps, and that "
            f"has taken {steps} in {batches} batches of fit(), as where a train_step() "
            "calls its apply() several times: epochs would seem to be over too soon. "
            "Pass steps_per_epoch to the callback, in steps of the optimizer."
        )

    def count_batch(self) -> None:
        """Another one has been taken, of which Keras has not called back yet."""
        self._batches += 1

    def steps_taken(self, counts: Sequence[int] | None = None) -> int:
        """How many steps the optimizers have taken.

        Args:
            counts: Of each; None: as their variables say.
        """
        if counts is None:
            counts = [int(internals.iterations(one)) for one in self.optimizers]
        if len(set(counts)) > 1 and not self._skips:
            names = [optimizer.name for optimizer in self.optimizers]
            raise ValueError(
                "[RK621] "
                f"{type(self).__name__} counts steps, but the model's optimizers "
                f"{names} have taken different numbers: {list(counts)}. Give each a "
                "ring_keras.schedules.Warmup in place of the callback."
            )
        self._steps_now = max(counts)
        if not self._batches:
            self._steps_before = self._steps_now
        return self._steps_now

    def steps_since_first_epoch(self, step: int) -> int:
        """The same, if the optimizer had taken those of earlier epochs, as long as now.

        `fit(initial_epoch=...)` may begin with a new one, or with one that has taken
        more steps in an epoch, on fewer ranks, or a part of this epoch, which begins
        anew. Where `ring_keras.data.Resume` goes on within it, steps say more.
        """
        if not self._initial_epoch or is_elastic():  # Epochs have other numbers there.
            return step
        # The epochs of `fit`, whatever this callback is to take for one.
        per_epoch = (self.params or {}).get("steps") or self.known_steps_per_epoch()
        ahead = step - self._steps_now
        first_steps = self._initial_epoch * per_epoch
        by_epochs = first_steps + self._batches + ahead
        if not self._goes_on_by_steps or self._steps_before >= first_steps + per_epoch:
            return by_epochs
        return max(step, by_epochs)

    def _is_resumed_by_steps(self) -> bool:
        """Whether a callback of this `fit` has found the epoch by the steps before."""
        listed = calls.calling_callback_list()
        callbacks = [] if listed is None else listed.callbacks
        return any(getattr(one, "goes_on_by_steps", False) for one in callbacks)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Sets the rate of the next step, or of the next few."""
        assert self.rates is not None
        self.rates.before_batch()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the rate to the epoch's logs, as Keras's own scheduler does."""
        if logs is not None:
            logs["learning_rate"] = self.learning_rate()

    def process_set(self) -> ProcessSet:
        """The ranks that train the model."""
        if self._trained is None:  # Of Keras 2, whose callbacks ask for the rate alone.
            return global_process_set
        return fit_side().process_set_of(self._trained)

    def learning_rate(self) -> float:
        """What it is now."""
        return float(self.optimizers[0].learning_rate.numpy())

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Nothing is left of it in the model."""
        if self.rates is not None:
            self.rates.end()
        self.rates = None
