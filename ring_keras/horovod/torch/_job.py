"""Waiting for all ranks."""

from __future__ import annotations

from ring_keras import _native
from ring_keras.job.process_set import ProcessSet, global_process_set

__all__ = ["barrier", "join"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the process set has called it.

    Raises:
        PeerLostError: If a rank has died or left.
    """
    _native.barrier("barrier", process_set.communicator_id())


def join(device: int = -1) -> int:
    """Takes part in the other ranks' collectives until all have called it.

    Until then this rank adds nothing to sums, does not count in averages, but for those
    of whole numbers, and adds no rows to gathers. It gets none of the results.

    Args:
        device: Taken, and not needed.

    Returns:
        The last rank to join, the same on every rank.

    Raises:
        PeerLostError: If a rank has died or left.
    """
    return _native.join(global_process_set.communicator_id())
