"""What is known while one training step is traced, or run eagerly.

The step's wrapper opens the scope; whoever reduces gradients inside it finds
this rank's weight there, and leaves word that the step communicated.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ring_keras.communicator import ProcessSet

__all__ = ["StepScope", "current_step", "enter_step"]


@dataclass
class StepScope:
    """One training step.

    Attributes:
        process_set: The ranks that train together.
        weight: Scalar: this rank's share of the global batch times the number
            of ranks, so 1.0 where every rank has as many examples. None where
            all ranks count the same.
        communicated: Whether gradients have been reduced in this step.
        tape_gradients: What gradient tapes have returned, by `id`. Kept here,
            so that no other object gets the same `id`.
    """

    process_set: ProcessSet
    weight: tf.Tensor | None = None
    communicated: bool = False
    tape_gradients: dict[int, Any] = field(default_factory=dict)


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[StepScope] = []


_scopes = _Scopes()


def current_step() -> StepScope | None:
    """The innermost open scope of this thread."""
    return _scopes.stack[-1] if _scopes.stack else None


@contextlib.contextmanager
def enter_step(scope: StepScope) -> Iterator[None]:
    """Makes `scope` the current one."""
    _scopes.stack.append(scope)
    try:
        yield
    finally:
        _scopes.stack.pop()
