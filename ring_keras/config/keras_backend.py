"""Which of its back ends Keras has in this process, or will have: it need not be there.

Keras reads the same when it is imported, and keeps what it found.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "KerasBackend",
    "keras_backend",
    "prefer_keras_backend",
    "settle_keras_backend",
]


class KerasBackend(NamedTuple):
    """A back end of Keras.

    Attributes:
        name: "tensorflow", "torch", "jax" or another.
        source: What says so, for a sentence.
    """

    name: str
    source: str


_settled: KerasBackend | None = None
_preferred: KerasBackend | None = None


def keras_backend() -> KerasBackend:
    """Of Keras, if it is loaded; else what it will be, by all that is known now."""
    return _settled or _by_keras() or _by_environment() or _preferred or _by_file()


def prefer_keras_backend(name: str, source: str) -> None:
    """What it is from now on, unless Keras is there or KERAS_BACKEND is set.

    Not so `keras.json`, which Keras writes where there is none.
    """
    global _preferred
    _preferred = KerasBackend(name, source)


def settle_keras_backend() -> None:
    """From now on it stays what it is, for all of ring_keras.

    What has been done for one back end cannot be undone for another.
    """
    global _settled
    _settled = keras_backend()


def _by_keras() -> KerasBackend | None:
    # While Keras is being imported it has none yet.
    of_keras = getattr(sys.modules.get("keras"), "backend", None)
    name = getattr(of_keras, "backend", None)
    return None if name is None else KerasBackend(name(), "as Keras was imported")


def _by_environment() -> KerasBackend | None:
    name = os.environ.get("KERAS_BACKEND")
    return KerasBackend(name, "by KERAS_BACKEND") if name else None


def _by_file() -> KerasBackend:
    path = _keras_home() / "keras.json"
    try:
        name = json.loads(path.read_text(encoding="utf-8")).get("backend")
    except (AttributeError, OSError, ValueError):  # Keras may say what is wrong.
        name = None
    if name is None:
        return KerasBackend("tensorflow", "by default")
    return KerasBackend(name, f"by {path}")


def _keras_home() -> Path:
    given = os.environ.get("KERAS_HOME")
    with contextlib.suppress(RuntimeError):  # There is no home.
        if given is not None:
            return Path(given).expanduser()
        home = Path.home()
        if os.access(home, os.W_OK):
            return home / ".keras"
    return Path("/tmp/.keras")
