"""What a job prints, shown where this process's own output is."""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import termios
from typing import IO

from ring_keras.functions.shown_text import ShownInCell, ShownText

__all__ = ["JobOutput"]

_READ_NBYTES = 1 << 16


class JobOutput:
    """Standard output and error for ringrun.

    Where `sys.stdout` is what Python began with, ringrun gets that: a terminal, a file.
    If another has taken its place, as a notebook's, what ringrun writes is read and
    handed to it.

    Attributes:
        stdout: The descriptor for `subprocess`; None: it inherits this process's.
        stderr: The same.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._others_ends: list[int] = []
        self.stdout = self._open(sys.stdout, sys.__stdout__)
        self.stderr = self._open(sys.stderr, sys.__stderr__)

    def __enter__(self) -> JobOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it; who still writes is told so. Harmless twice."""
        self._close_others_ends()
        for key in list((self._selector.get_map() or {}).values()):
            self._forget(key.fd)
        self._selector.close()

    def show(self) -> None:
        """Hands over what is written until ringrun ends; goes on if interrupted."""
        self._close_others_ends()
        while self._selector.get_map():
            for key, _ in self._selector.select():
                data = b""
                # A terminal's end of file is an error.
                with contextlib.suppress(OSError):
                    data = os.read(key.fd, _READ_NBYTES)
                key.data.write(data)
                if not data:
                    self._forget(key.fd)

    def _open(self, stream: IO[str] | None, original: IO[str] | None) -> int | None:
        if stream is None or stream is original:
            if stream is not None:
                stream.flush()
            return None
        in_notebook = type(stream).__module__.startswith("ipykernel.")
        # ringrun shows progress on terminals only.
        if in_notebook and stream is sys.stdout:
            own, others = _open_terminal()
            shown: ShownText = ShownInCell(stream)
        else:
            own, others = os.pipe()
            shown = ShownText(stream)
        self._selector.register(own, selectors.EVENT_READ, shown)
        self._others_ends.append(others)
        return others

    def _close_others_ends(self) -> None:
        while self._others_ends:
            os.close(self._others_ends.pop())

    def _forget(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)


def _open_terminal() -> tuple[int, int]:
    own, others = os.openpty()
    attributes = termios.tcgetattr(others)
    attributes[1] &= ~termios.OPOST  # Lines end as they do elsewhere.
    termios.tcsetattr(others, termios.TCSANOW, attributes)
    return own, others
