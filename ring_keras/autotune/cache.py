"""What earlier jobs measured, in files of the user's cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ring_keras import _native
from ring_keras.config import cache_directory

__all__ = ["load", "save"]

# Of the file, and of what is measured: a new number forgets older files.
_FORMAT = 1


def load(key: Mapping[str, Any], names: Sequence[str]) -> dict[str, int] | None:
    """The settings that were found for a job like this one.

    A file that cannot be used is told of in the log and otherwise ignored.

    Args:
        key: What the job must have in common.
        names: The settings that there must be.
    """
    path = _path(key)
    if path is None or not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
        if content["key"] != _full(key):
            raise ValueError("it is about another job")
        settings = {name: content["settings"][name] for name in names}
        if not all(type(v) is int and 0 <= v < 1 << 62 for v in settings.values()):
            raise ValueError(f"sizes must be whole numbers of bytes, not {settings}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        _native.log(
            "warning",
            f"[RK126] autotune: {path} cannot be used ({type(error).__name__}: "
            f"{error}); measuring anew.",
        )
        return None
    return settings


def save(key: Mapping[str, Any], settings: Mapping[str, int]) -> None:
    """Keeps settings for later jobs; where it cannot, the log says so."""
    path = _path(key)
    if path is None:
        return
    content = {"key": _full(key), "settings": dict(settings)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete: another job may be reading.
        descriptor, unfinished = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
                file.write("\n")
            Path(unfinished).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(unfinished).unlink()
            raise
    except OSError as error:
        _native.log(
            "warning", f"[RK126] autotune: cannot write {path}: {error.strerror}."
        )


def _path(key: Mapping[str, Any]) -> Path | None:
    directory = cache_directory()
    if directory is None:
        return None
    text = json.dumps(_full(key), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return directory / f"autotune-{digest}.json"


def _full(key: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": _FORMAT, **key}
