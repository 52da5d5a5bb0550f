"""What happens on a rank, for whoever reads it."""

from __future__ import annotations

import collections
import threading
from typing import Any

__all__ = ["EventBook"]

_MOST_KEPT = 256


class EventBook:
    """The last events of this rank. Each reader remembers how far it has read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: collections.deque[dict[str, Any]] = collections.deque(
            maxlen=_MOST_KEPT
        )
        self._count = 0

    def add(self, one: dict[str, Any]) -> None:
        """To the end."""
        with self._lock:
            self._events.append(one)
            self._count += 1

    def since(self, count: int) -> tuple[list[dict[str, Any]], int]:
        """Those after the first `count` ever, and how many there are now."""
        with self._lock:
            new = min(self._count - count, len(self._events))
            return list(self._events)[len(self._events) - new :], self._count
