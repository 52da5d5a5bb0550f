"""Data that never end, of which ranks have none or all."""

from __future__ import annotations

from collections.abc import Sequence

from ring_keras.errors import RankMismatchError

__all__ = ["INFINITE", "require_all_or_none_infinite"]

INFINITE = -1
"""The number of batches of such data, as in tf.data."""


def require_all_or_none_infinite(counts: Sequence[int], ranks: Sequence[int]) -> None:
    """Before `join` has ranks go on with those that have more data.

    Args:
        counts: Each rank's number of batches.
        ranks: Of the process set.

    Raises:
        RankMismatchError: If only some are infinite.
    """
    infinite = [r for r, n in zip(ranks, counts, strict=True) if n == INFINITE]
    others = [r for r, n in zip(ranks, counts, strict=True) if n != INFINITE]
    if infinite and others:
        raise RankMismatchError(
            "[RK321] "
            f"ring_keras.data.join: the data of ranks {infinite} never end, those of "
            f"ranks {others} do. Leave out repeat(), or call it on every rank, with "
            "steps_per_epoch in fit()."
        )
