"""What training needs of the framework that Keras computes by."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ring_keras.config import keras_backend

if TYPE_CHECKING:
    from ring_keras.backends.common.hook import GradientHook
    from ring_keras.backends.common.ranks_fit import RanksFit
    from ring_keras.callbacks.step_rates import StepRates

__all__ = ["Framework", "framework"]


@dataclass(frozen=True)
class Framework:
    """That of a back end, in its module `framework` under the name `FRAMEWORK`.

    Attributes:
        hook: What makes an optimizer reduce its gradients.
        fit: What the ranks do together in a `fit`.
        rates: How learning rates of a callback come to its steps.
        prepare: Called once, before an optimizer is the first to reduce.
    """

    hook: type[GradientHook]
    fit: type[RanksFit]
    rates: type[StepRates]
    prepare: Callable[[], None]


@functools.cache
def framework() -> Framework:
    """That of this process, whose back end `_requirements.py` has found to have one."""
    name = keras_backend().name
    module = importlib.import_module(f"ring_keras.backends.{name}.framework")
    found: Framework = module.FRAMEWORK
    return found
