"""The learning rate that a script trains with once warm-up is over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from ring_keras.callbacks import LearningRateWarmup
from ring_keras.job.topology import size

__all__ = ["final_learning_rate"]


def final_learning_rate(model: keras.Model, callbacks: Iterable[Any]) -> float | None:
    """As compiled, or as these callbacks of `fit` will set it; None if unknown."""
    for callback in callbacks:
        if isinstance(callback, LearningRateWarmup):
            scale = size() if callback.scale is None else callback.scale
            return float(callback.base_lr * scale)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return None
    config = getattr(optimizer, "inner_optimizer", optimizer).get_config()
    return _final(config.get("learning_rate"))


def _final(rate: Any) -> float | None:
    """Of a number, or of a schedule's configuration: before it decays."""
    if isinstance(rate, dict):
        config = rate.get("config") or {}
        for name in ("warmup_target", "initial_learning_rate", "learning_rate"):
            found = _final(config.get(name))
            if found is not None:
                return found * float(config.get("scale", 1.0))
        return None
    return None if rate is None else float(rate)
