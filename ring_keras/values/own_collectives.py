"""Collectives that a program calls itself, where not all ranks can take part."""

import contextlib
import threading
from collections.abc import Iterator

from ring_keras.errors import RingKerasError

__all__ = ["own_collectives_refused", "require_own_collectives"]


class _Scope(threading.local):
    why: str = ""


_scope = _Scope()


@contextlib.contextmanager
def own_collectives_refused(why: str) -> Iterator[None]:
    """In it a layer, a loss or a metric must call none.

    Args:
        why: The rest of the message; "" if it may.
    """
    before, _scope.why = _scope.why, why
    try:
        yield
    finally:
        _scope.why = before


def require_own_collectives(function: str) -> None:
    """Raises where they are refused.

    Args:
        function: Which is called.

    Raises:
        RingKerasError: On all ranks that come here.
    """
    if _scope.why:
        raise RingKerasError(f"[RK660] {function}() is called in {_scope.why}")
