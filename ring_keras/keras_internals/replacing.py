"""Methods replaced on one instance."""

from collections.abc import Callable
from typing import Any

__all__ = ["replace", "replacement", "restore"]


def replace(target: Any, name: str, value: Callable[..., Any]) -> None:
    """Puts `value` before the method `name` of this one instance.

    Past `__setattr__`, so that neither Keras nor TensorFlow tracks it.
    """
    vars(target)[name] = value


def restore(target: Any, name: str) -> None:
    """Undoes `replace`."""
    vars(target).pop(name, None)


def replacement(target: Any, name: str) -> Any:
    """What `replace` put there, or None."""
    return vars(target).get(name)
