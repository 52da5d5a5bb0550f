"""Actions of a step that are taken where something holds."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["run_if"]


def run_if(condition: Any, action: Callable[[], Any]) -> None:
    """Takes an action where a condition holds; None: in any case."""
    if condition is None:
        action()
        return

    def run() -> tf.Tensor:
        action()
        return tf.constant(True)

    tf.cond(condition, run, lambda: tf.constant(False))
