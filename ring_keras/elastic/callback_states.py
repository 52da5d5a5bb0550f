"""What callbacks have counted, for ranks that come later."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from ring_keras.ops.encoding import encode
from ring_keras.training.distributed_fit import DistributedFit

__all__ = ["CallbackStates"]

# Keras's own, and what shows something on one rank alone.
_NOT_TAKEN = {"model", "_model", "params", "verbose"}


class CallbackStates:
    """Plain attributes of a `fit`'s callbacks that have changed since it began.

    Such as how long `EarlyStopping` has waited, and what `History` has. What was given
    to a callback, its configuration, is left as it is on each rank; but for callbacks
    that set learning rates, where it has to be the same.

    Args:
        callbacks: The list of this call, as it is when all have begun.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._callbacks = callbacks
        self._first = {
            key: {name: content for name, _, content in _plain(callback)}
            for key, callback in _by_key(callbacks)
        }

    def values(self) -> dict[str, dict[str, Any]]:
        """What has changed, or must be the same, by callback and attribute."""
        return {
            key: {
                name: value
                for name, value, content in _plain(callback)
                if getattr(callback, "same_on_all_ranks", False)
                or self._first.get(key, {}).get(name) != content
            }
            for key, callback in _by_key(self._callbacks)
        }

    def take(self, values: dict[str, dict[str, Any]]) -> None:
        """Takes another rank's; of callbacks that only that one has, nothing."""
        for key, callback in _by_key(self._callbacks):
            for name, value in values.get(key, {}).items():
                setattr(callback, name, value)


def _by_key(
    callbacks: Sequence[keras.callbacks.Callback],
) -> Iterator[tuple[str, keras.callbacks.Callback]]:
    """Each with its class, and which of that class it is."""
    counts: dict[str, Iterator[int]] = {}
    for callback in callbacks:
        name = type(callback).__qualname__
        number = next(counts.setdefault(name, itertools.count()))
        # What one rank shows, or does alone, and what this package keeps itself.
        left_out = (keras.callbacks.ProgbarLogger, DistributedFit)
        if not isinstance(callback, left_out) and not getattr(
            callback, "keeps_state", False
        ):
            yield f"{name} {number}", callback


def _plain(callback: keras.callbacks.Callback) -> Iterator[tuple[str, Any, bytes]]:
    """Names, values, and the values' encoding."""
    for name, value in vars(callback).items():
        if name in _NOT_TAKEN:
            continue
        try:
            yield name, value, encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            continue
