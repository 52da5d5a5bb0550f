"""Whose learning rates the steps of a model take that no other ranks train with it."""

from __future__ import annotations

from typing import TypeVar

import keras

from ring_keras.callbacks.learning_rate_rule import LearningRateRule
from ring_keras.callbacks.step_rates import StepRates
from ring_keras.keras_internals import calls

__all__ = ["rates_under_way"]

_Rates = TypeVar("_Rates", bound=StepRates)


def rates_under_way(model: keras.Model, kind: type[_Rates]) -> list[_Rates]:
    """Those of callbacks of the `fit` that has called us, and of no earlier one.

    A `fit` that has failed may have left what calls this behind.
    """
    run = calls.calling_run(model)
    rules = [] if run is None else run.callbacks.callbacks
    return [
        rule.rates
        for rule in rules
        if isinstance(rule, LearningRateRule) and isinstance(rule.rates, kind)
    ]
