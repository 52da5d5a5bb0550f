"""Bytes and texts of all ranks, of any length, without TensorFlow."""

from __future__ import annotations

import numpy as np

from ring_keras import _native

__all__ = ["gather_bytes", "gather_texts", "name_of_first"]


def name_of_first(name: str) -> str:
    """Of the first collective by which values of any length travel."""
    return f"{name}/nbytes"


def gather_bytes(
    content: bytes, name: str, communicator_id: int = 0
) -> list[tuple[int, bytes]]:
    """What every rank has, in the order of ranks: two collectives.

    Args:
        content: This rank's.
        name: Pairs this call with the other ranks'.
        communicator_id: The ranks that take part. Defaults to all.

    Returns:
        A rank of the whole job, and its content, for each rank but those that are in
        `ring.join()`.
    """
    rank, *_ = _native.topology()
    head = np.array([[rank, len(content)]], np.int64)
    heads = _native.allgather(head, name_of_first(name), communicator_id)
    gathered = _native.allgather(
        np.frombuffer(content, np.uint8), name, communicator_id
    )
    parts = np.split(gathered, np.cumsum(heads[:-1, 1]))
    return [
        (int(other), part.tobytes())
        for other, part in zip(heads[:, 0], parts, strict=True)
    ]


def gather_texts(text: str, name: str) -> list[str]:
    """Every rank's text, by rank."""
    gathered = gather_bytes(text.encode(), name)
    return [content.decode(errors="replace") for _, content in gathered]
