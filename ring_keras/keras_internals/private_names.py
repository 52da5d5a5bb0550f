"""Says at once which private names an installed release does not have."""

import functools
import inspect
import pkgutil
import sys
from typing import Any

import keras

from ring_keras.errors import RingKerasError
from ring_keras.keras_internals.names import (
    ITERATOR,
    LOCALS,
    NAMES_OF_BACK_ENDS,
    NEWEST_KERAS,
    OLDEST_KERAS,
    PRIVATE_NAMES,
)

__all__ = [
    "gone",
    "owner_of",
    "private",
    "require_method",
    "require_names_of_back_end",
    "require_private_names",
]


@functools.cache
def require_private_names() -> None:
    """Raises if a name of PRIVATE_NAMES is gone: nothing here would work, or be right.

    Or one of LOCALS: then `fit` would train each rank alone.

    Raises:
        RingKerasError: Names all of them.
    """
    missing = []
    for path, names in PRIVATE_NAMES.items():
        try:
            owner = owner_of(path)
        except (AttributeError, ImportError):
            missing.append(path)
            continue
        missing += [f"{path}.{name}" for name in names if not hasattr(owner, name)]
    missing += _missing_locals()
    if missing:
        raise gone(missing)


def _missing_locals() -> list[str]:
    missing: list[str] = []
    for method, names in LOCALS.items():
        function = inspect.unwrap(getattr(keras.Model, method))
        if not function.__module__.startswith("keras."):
            continue  # Somebody's, that calls Keras's.
        code = function.__code__
        known = {*code.co_varnames, *code.co_cellvars}
        missing += [
            f"{name} in keras.Model.{method}()" for name in names if name not in known
        ]
    return missing


@functools.cache
def require_names_of_back_end() -> None:
    """The same, of what is needed on the back end that Keras has, if not TensorFlow.

    Raises:
        RingKerasError: Names all that are gone.
    """
    missing = [
        f"{path}.{name}"
        for path, names in NAMES_OF_BACK_ENDS[keras.backend.backend()].items()
        for name in names
        if not hasattr(owner_of(path), name)
    ]
    missing += _missing_locals()
    if missing:
        raise gone(missing)


def owner_of(path: str) -> Any:
    """What a key of PRIVATE_NAMES stands for."""
    if path == ITERATOR:
        from ring_keras.keras_internals.iterators import OWNED_ITERATOR

        return OWNED_ITERATOR
    return pkgutil.resolve_name(path.replace("tf.", "tensorflow.", 1))


def private(target: Any, name: str) -> Any:
    """The attribute of an object, whose class may not have it before it is made.

    Raises:
        RingKerasError: If there is none.
    """
    try:
        return getattr(target, name)
    except AttributeError:
        raise gone([f"{type(target).__name__}.{name}"]) from None


def require_method(target: Any, name: str) -> None:
    """Raises if the class of an object has no such method, which nobody would call.

    Raises:
        RingKerasError: If it has none.
    """
    if not hasattr(type(target), name):
        raise gone([f"{type(target).__name__}.{name}"])


def gone(names: list[str]) -> RingKerasError:
    """The error of a release that does not have these."""
    return RingKerasError(
        "[RK607] "
        f"Keras {keras.__version__} with {_framework()} has not all that "
        f"ring_keras needs: {', '.join(names)}. It knows Keras {OLDEST_KERAS} to "
        f"{NEWEST_KERAS}. Install one of these, or a newer ring_keras."
    )


def _framework() -> str:
    name = keras.backend.backend()
    if name == "tensorflow":
        name = "TensorFlow"
    module = sys.modules.get(name.lower())
    return f"{name} {getattr(module, '__version__', '')}".rstrip()
