"""Errors of collectives in what JAX runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ring_keras.errors import translated
from ring_keras.jax.order import forget_failed

__all__ = ["in_computation"]


@contextlib.contextmanager
def in_computation() -> Iterator[None]:
    """A computation begins and ends in it; its errors are ring_keras's."""
    try:
        with translated():
            yield
    except BaseException:
        forget_failed()
        raise
