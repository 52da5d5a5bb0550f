"""Keras's models as bytes: the contents of a `.keras` file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

__all__ = ["load_model", "saved_model"]


def saved_model(model: keras.Model) -> bytes:
    """What `model.save` would write."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model.keras")
        model.save(path)
        return path.read_bytes()


def load_model(
    content: bytes, custom_objects: Mapping[str, Any], *, compile: bool
) -> keras.Model:
    """The model again.

    Args:
        content: Of `saved_model`.
        custom_objects: By name, what is neither Keras's nor registered with it.
        compile: Whether it is compiled, as it was.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model.keras")
        path.write_bytes(content)
        return keras.models.load_model(
            path, custom_objects=dict(custom_objects), compile=compile
        )
