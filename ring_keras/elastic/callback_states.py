"""What callbacks have counted, for ranks that come later."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.values.encoding import decode, encode

__all__ = ["CallbackStates"]

# Set on a callback: the names of attributes that calls of `fit` have changed.
_CHANGED = "_ring_keras_changed_in_fit"

# Keras's own, and what shows something on one rank alone.
_NOT_TAKEN = {"model", "_model", "params", "verbose", _CHANGED}


class CallbackStates:
    """Plain attributes of a `fit`'s callbacks that a `fit` has changed.

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
                or name in vars(callback).get(_CHANGED, ())
                or self._first.get(key, {}).get(name) != content
            }
            for key, callback in _by_key(self._callbacks)
        }

    def take(self, values: dict[str, dict[str, Any]]) -> None:
        """Takes another rank's; of callbacks that only that one has, nothing.

        What has changed on this rank alone, on its way to the others, is undone.
        """
        own = self.values()
        for key, callback in _by_key(self._callbacks):
            if key not in values:
                continue
            for name in own[key].keys() & self._first[key].keys():
                setattr(callback, name, decode(self._first[key][name]))
            for name, value in values[key].items():
                setattr(callback, name, value)

    def note_changes(self) -> None:
        """The call ends: another one, with the same callbacks, goes on from there."""
        own = self.values()
        for key, callback in _by_key(self._callbacks):
            vars(callback)[_CHANGED] = set(own[key])


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
    # Its sign follows from monitor_op, a function, which each rank finds by itself.
    not_taken = _NOT_TAKEN | (
        {"min_delta"} if hasattr(callback, "monitor_op") else set()
    )
    for name, value in vars(callback).items():
        if name in not_taken:
            continue
        try:
            yield name, value, encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            continue
