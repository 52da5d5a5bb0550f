"""A state of plain Python values."""

import copy
from typing import Any

from ring_keras.elastic.state import State
from ring_keras.values.objects import broadcast_object

__all__ = ["ObjectState"]


class ObjectState(State):
    """Holds values as attributes: `ObjectState(epoch=0).epoch`.

    Examples:
        >>> state = ring.elastic.ObjectState(epoch=0, best=None)
        >>> state.epoch = 1
        >>> state.restore()
        >>> state.epoch
        0

    Args:
        **values: Names and initial values: plain values, as `ring.broadcast_object`
            takes them.

    Raises:
        ValueError: If a name is that of a method.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__()
        for name, value in values.items():
            if hasattr(self, name):
                raise ValueError(
                    f"{type(self).__name__} has an attribute {name!r} of its own; give "
                    "the value another name."
                )
            setattr(self, name, value)
        self._names = list(values)
        self._saved_values: dict[str, Any] = {}
        ObjectState.save(self)

    def save(self) -> None:
        """Keeps a copy of the values in memory."""
        self._saved_values = copy.deepcopy(self._values())

    def restore(self) -> None:
        """Returns to the last copy."""
        self._set(copy.deepcopy(self._saved_values))

    def take_from(self, source: int) -> None:
        """Takes the values of that rank; a collective."""
        self._set(broadcast_object(self._values(), source, name="elastic/values"))

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)
