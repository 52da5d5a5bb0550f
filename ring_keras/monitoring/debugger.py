"""Python's debugger for one rank, at the terminal of ringrun."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pdb
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from ring_keras import _native
from ring_keras.config import Config, scheduled_rank

__all__ = ["breakpoint"]


def breakpoint(rank: int = 0) -> None:
    """Stops one rank in Python's debugger, which asks at the terminal of ringrun.

    The others continue to the next collective that needs that rank. While it is at the
    prompt, they wait without a warning or a time-out. Under ringrun, Python's own
    `breakpoint()` is this function, unless `PYTHONBREAKPOINT` is set.

    Examples:
        >>> for images, labels in dataset:
        ...     ring.breakpoint(rank=1)
        ...     step(images, labels)

    Args:
        rank: The rank to stop. The others may call this function, too, or not.

    Raises:
        RuntimeError: If that rank has no terminal: ringrun runs without one, or has
            started it on another host.
    """
    config = Config.from_environment()
    if _native.is_initialized():
        own = _native.topology()[0]
    else:
        own = (scheduled_rank() or config).rank
    if own != rank:
        warnings.warn(
            f"[RK826] breakpoint() stops rank {rank}, and this rank goes on. "
            "ring.breakpoint(rank=N) stops rank N",
            stacklevel=2,
        )
        return
    terminal = config.terminal
    if terminal is None and sys.stdin is not None and sys.stdin.isatty():
        terminal = os.ttyname(sys.stdin.fileno())  # No launcher is in between.
    if terminal is None:
        raise RuntimeError(
            f"[RK825] breakpoint() on rank {rank} has no terminal to ask at. Start "
            "ringrun at a terminal, and stop a rank of the same host; or attach a "
            "debugger, as docs/debugging.md says"
        )
    _Debugger(terminal).set_trace(sys._getframe(1))


class _Debugger(pdb.Pdb):
    """One that is alone at the terminal whenever it asks."""

    def __init__(self, terminal: str) -> None:
        fd = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
        asks, answers = os.fdopen(os.dup(fd), "w"), os.fdopen(fd)
        super().__init__(stdin=answers, stdout=asks, nosigint=True)
        self._fd = fd
        self._interrupted = False

    def interaction(self, *arguments: Any, **keywords: Any) -> None:
        """Asks, until the program is to go on."""
        # As long as it is locked, ringrun draws nothing below its lines.
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self.stdout.write("\r\x1b[K")  # In place of what it has drawn.
        try:
            with _others_are_patient():
                super().interaction(*arguments, **keywords)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        if self._interrupted:
            raise KeyboardInterrupt

    def cmdloop(self, intro: Any = None) -> None:
        """Takes commands. Ctrl-C ends the job, as ever, and brings no prompt back."""
        try:
            super().cmdloop(intro)
        except KeyboardInterrupt:
            self._interrupted = True


@contextlib.contextmanager
def _others_are_patient() -> Iterator[None]:
    if not _native.is_initialized():
        yield
        return
    _native.set_debugged(True)
    try:
        yield
    finally:
        if _native.is_initialized():
            _native.set_debugged(False)
