"""Batches that a fast rank trains on besides those that all ranks count."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from ring_keras.errors import RingKerasError

__all__ = ["COMMON", "OWN", "ExtraBatches"]

COMMON, OWN = "common", "own"
"""A pace that is no number: all ranks take as many batches; or as many as they can."""


class ExtraBatches:
    """Says in a step whether its batch is extra; kept in the process.

    That is a variable, so a step is traced once for both. Who trains says so outside of
    the step. Where nobody does, as in a loop, a rank would take as many batches as the
    others, whatever it was asked for: so such a step is refused.

    Args:
        name: Of the optimizer, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_paced = False
        self._wanted = False
        self._is_extra: tf.Variable | None = None

    def prepare(self) -> None:
        """Before `is_extra`: makes what steps read."""
        with tf.init_scope():
            self._is_extra = tf.Variable(self._wanted, trainable=False)

    @contextlib.contextmanager
    def paced(self) -> Iterator[None]:
        """Somebody sees to it inside that extra batches are taken."""
        if self._wanted:  # An interrupt came where it was to be set back.
            self._set(False)
        before, self._is_paced = self._is_paced, True
        try:
            yield
        finally:
            self._is_paced = before

    @contextlib.contextmanager
    def extra(self) -> Iterator[None]:
        """The batches inside are."""
        self._set(True)
        try:
            yield
        finally:
            self._set(False)

    def require_paced(self) -> None:
        """Raises RingKerasError where nobody takes extra batches."""
        if not self._is_paced:
            raise RingKerasError(
                "[RK353] "
                f"optimizer '{self._name}' has a `pace`, which only fit() acts on: in "
                "a loop, and in train_on_batch(), this rank would take as many batches "
                "as the others. Leave out `pace`, or train with fit()."
            )

    def is_extra(self) -> tf.Tensor:
        """Scalar of bool, when the step runs; raises as `require_paced`."""
        self.require_paced()
        assert self._is_extra is not None
        return self._is_extra.read_value()

    def _set(self, is_extra: bool) -> None:
        self._wanted |= is_extra
        if self._is_extra is not None:
            self._is_extra.assign(is_extra)
        self._wanted = is_extra
