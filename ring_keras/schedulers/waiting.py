"""Waits for a descriptor, of whatever number, until a deadline."""

from __future__ import annotations

import select
import time

__all__ = ["is_readable"]


def is_readable(descriptor: int, deadline: float) -> bool:
    """Waits until it can be read, or is at its end; False if that takes too long.

    Args:
        descriptor: May be above 1023, where `select` ends.
        deadline: On the monotonic clock.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
