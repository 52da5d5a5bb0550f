"""How learning rates that a callback knows come to the steps of one `fit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import keras
import numpy as np

from ring_keras import keras_internals as internals

__all__ = ["Rule", "StepRates"]


class Rule(Protocol):
    """A callback that knows the rates."""

    model: keras.Model
    momentum_correction: bool
    optimizers: list[keras.optimizers.Optimizer]

    def steps_taken(self, counts: Sequence[int] | None = None) -> int:
        """How many steps the optimizers have taken."""

    def learning_rate_at(self, step: int) -> float | None:
        """The rate for the step after `step` others; None leaves it alone."""

    def count_batch(self) -> None:
        """Another one has been taken, of which Keras has not called back yet."""


class StepRates:
    """Sets the rate in Python, before each step.

    Args:
        rule: Knows the rates.
    """

    counts_batches = False
    """Whether the rule hears of each step by `count_batch`."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def begin(self) -> None:
        """The rule has found its optimizers."""

    def before_batch(self) -> None:
        """Sets the rate of the next step."""
        rate = self.rule.learning_rate_at(self.rule.steps_taken())
        if rate is not None:
            self._set(rate)

    def end(self) -> None:
        """`fit` has ended, or another one is about to begin."""

    def _set(self, rate: float) -> None:
        for optimizer in self.rule.optimizers:
            variable = optimizer.learning_rate
            before = float(variable.numpy())
            if np.float32(rate) == before:
                continue
            # The optimizer's setter does the same, and takes 0.1 ms a step.
            variable.assign(rate)
            if self.rule.momentum_correction and before > 0.0:
                self.scale_momentum(optimizer, rate / before)

    def scale_momentum(
        self, optimizer: keras.optimizers.Optimizer, factor: float
    ) -> None:
        """Has earlier gradients count as if they had been taken with another rate."""
        for variable in internals.velocities(optimizer):
            variable.assign(variable.value * factor)
