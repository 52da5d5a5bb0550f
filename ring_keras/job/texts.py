"""Short texts of all ranks, without TensorFlow."""

from __future__ import annotations

import numpy as np

from ring_keras import _native

__all__ = ["gather_texts"]


def gather_texts(text: str, name: str) -> list[str]:
    """Every rank's text, by rank: a collective."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    lengths = _native.allgather(np.array([len(encoded)]), f"{name}/lengths")
    gathered = _native.allgather(encoded, f"{name}/texts")
    ends = np.cumsum(lengths)
    parts = np.split(gathered, ends[:-1])
    return [part.tobytes().decode(errors="replace") for part in parts]
