"""What the launcher and an agent wait for: descriptors, signals, children, seconds."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ring_keras.launch.guard import (
    FORWARDED_SIGNALS,
    Ended,
    heard_signals,
    kill_descendants,
    reap,
    remove_directory,
)

__all__ = ["TICK_S", "Loop", "wake_on_signals"]

TICK_S = 1.0

_Callback = Callable[[], None]


class Loop:
    """Calls back when something happens; in the main thread, one at a time.

    From here on signals do not act by themselves: they go to `on_signal`.

    Args:
        front_fd: Reads end of file once the front has died: see guard.py. Then
            this process kills all that is below it, and itself.
        directory: Is removed then, as the front cannot.
        on_signal: Gets the number of each of `FORWARDED_SIGNALS`.
    """

    def __init__(
        self, front_fd: int, directory: Path, on_signal: Callable[[int], None]
    ) -> None:
        self._directory = directory
        self._on_signal = on_signal
        self._selector = selectors.DefaultSelector()
        self._writers: dict[int, _Callback] = {}
        self._readers: dict[int, _Callback] = {}
        self._tickers: list[_Callback] = []
        self._soon: collections.deque[_Callback] = collections.deque()
        self._children: dict[int, Callable[[Ended], None]] = {}
        self._orphan_watchers: list[_Callback] = []
        self._reaps = False
        self._next_tick = time.monotonic() + TICK_S
        self._wake_fd, self._wake_write = wake_on_signals()
        self.on_readable(front_fd, self._end_with_front)
        self.on_readable(self._wake_fd, self._take_signals)

    def on_readable(self, fd: int, callback: _Callback | None) -> None:
        """Calls back while there is something to read; None: no more."""
        self._set(self._readers, fd, callback)

    def on_writable(self, fd: int, callback: _Callback | None) -> None:
        """Calls back while there is room to write; None: no more."""
        self._set(self._writers, fd, callback)

    def forget(self, fd: int) -> None:
        """Before the descriptor is closed."""
        self.on_readable(fd, None)
        self.on_writable(fd, None)

    def on_tick(self, callback: _Callback) -> None:
        """Calls back about each second, and once however late it is."""
        self._tickers.append(callback)

    def no_tick(self, callback: _Callback) -> None:
        """Ends `on_tick`, if it has not ended yet."""
        with contextlib.suppress(ValueError):
            self._tickers.remove(callback)

    def on_child_end(self, pid: int, callback: Callable[[Ended], None]) -> None:
        """Calls back once, when that child of this process has ended."""
        self._children[pid] = callback
        self._reaps = True

    def on_orphan_end(self, callback: _Callback) -> None:
        """Calls back whenever a process has ended that a child has left behind."""
        self._orphan_watchers.append(callback)

    def no_orphan_end(self, callback: _Callback) -> None:
        """Ends `on_orphan_end`."""
        self._orphan_watchers.remove(callback)

    def call_soon(self, callback: _Callback) -> None:
        """Calls back once, in a turn; from any thread."""
        self._soon.append(callback)
        self.wake()

    def wake(self) -> None:
        """Ends a turn that waits; from any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")  # No signal has this number.

    def turn(self, timeout_s: float | None = None) -> None:
        """Waits until something has happened, or so long, and calls back."""
        if self._tickers:
            until_tick = max(0.0, self._next_tick - time.monotonic())
            timeout_s = until_tick if timeout_s is None else min(timeout_s, until_tick)
        for key, events in self._selector.select(timeout_s):
            # What was called before may have taken the descriptor away.
            if events & selectors.EVENT_READ and key.fd in self._readers:
                self._readers[key.fd]()
            if events & selectors.EVENT_WRITE and key.fd in self._writers:
                self._writers[key.fd]()
        while self._soon:
            self._soon.popleft()()
        if time.monotonic() >= self._next_tick:
            self._next_tick = time.monotonic() + TICK_S
            for callback in list(self._tickers):
                callback()
        # All: as a subreaper this process gets what others leave.
        orphans_ended = False
        while self._reaps and (ended := reap()) is not None:
            note_end = self._children.pop(ended.pid, None)
            orphans_ended |= note_end is None
            if note_end is not None:
                note_end(ended)
        if orphans_ended:
            for callback in list(self._orphan_watchers):
                callback()

    def run_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Takes turns until it holds; False if it did not within so many seconds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.turn(left)
        return True

    def _set(
        self, callbacks: dict[int, _Callback], fd: int, callback: _Callback | None
    ) -> None:
        if callback is None:
            callbacks.pop(fd, None)
        else:
            callbacks[fd] = callback
        events = selectors.EVENT_READ if fd in self._readers else 0
        events |= selectors.EVENT_WRITE if fd in self._writers else 0
        known = fd in self._selector.get_map()
        if not events:
            if known:
                self._selector.unregister(fd)
        elif known:
            self._selector.modify(fd, events)
        else:
            self._selector.register(fd, events)

    def _take_signals(self) -> None:
        for number in os.read(self._wake_fd, 4096):
            if number not in (0, signal.SIGCHLD):  # Those end a turn, no more.
                self._on_signal(number)

    def _end_with_front(self) -> None:
        """The front was killed, so the ranks are."""
        kill_descendants()
        remove_directory(self._directory)
        os._exit(128 + signal.SIGKILL)


def wake_on_signals() -> tuple[int, int]:
    """Makes signals readable as bytes of a descriptor, instead of acting.

    Returns:
        That, and what wakes whoever reads it.
    """
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (*heard_signals(), signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
    return wake_read, wake_write
