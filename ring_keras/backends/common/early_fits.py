"""A `fit` whose own arguments are the first to make something distributed.

Python looks `model.fit` up before it makes the callbacks in the call: it would run a
`fit` that knows nothing of ranks.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["replace_methods", "watch_fits"]

_NAMES = ("fit", "evaluate")

# By name: what has come into the place of a method of `keras.Model`.
_later: dict[str, Callable[..., Any]] = {}


class _Sent(threading.local):
    on = False


_sent = _Sent()


def watch_fits() -> None:
    """From now on such a call is sent on to what has come in its place."""
    if "keras" in sys.modules:  # Else programs would wait for it in `init()`.
        _watch()


@functools.cache
def _watch() -> None:
    import keras

    for name in _NAMES:
        if name not in _later:
            setattr(keras.Model, name, _sent_on(name, getattr(keras.Model, name)))


def _sent_on(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        # What has come in its place calls this one.
        later = method if _sent.on else _later.get(name, method)
        return later(model, *args, **kwargs)

    return call


def replace_methods(**wrappers: Callable[[Callable[..., Any]], Any]) -> None:
    """Puts a method around each of these of `keras.Model`; once in a process."""
    import keras

    for name, wrapper in wrappers.items():
        _later[name] = _not_sent_on(wrapper(getattr(keras.Model, name)))
        setattr(keras.Model, name, _later[name])


def _not_sent_on(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        before, _sent.on = _sent.on, True
        try:
            return method(model, *args, **kwargs)
        finally:
            _sent.on = before

    return call
