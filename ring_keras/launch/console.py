"""Our own standard output and error, as the ranks' lines reach them."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Sequence

__all__ = ["BETWEEN_PARTS", "OWN_PREFIX", "Console", "Footer", "write_all"]

# Of what ringrun itself has to say.
OWN_PREFIX = b"ringrun: "
# Of a status, which says first what matters most.
BETWEEN_PARTS = " | "

_CLEAR_LINE = b"\r\x1b[K"
_WIDTH = 80


class Footer:
    """What stays below the lines that pass by on a terminal: a progress bar, a status.

    Standard output and error share one, as they share the terminal.
    """

    def __init__(self) -> None:
        self.progress = b""
        self.status = b""
        self._shown_count = 0

    def erase(self) -> bytes:
        """What puts the cursor where the lines go on."""
        count, self._shown_count = self._shown_count, 0
        return b"\x1b[1A".join([_CLEAR_LINE] * count)

    def forget(self) -> None:
        """Somebody else has written below it: it stays where it is."""
        self._shown_count = 0

    def draw(self) -> bytes:
        """What shows it again."""
        lines = [line for line in (self.progress, self.status) if line]
        self._shown_count = len(lines)
        return b"\n".join(lines)


class Console:
    """Our own standard output or error, where only whole lines mix.

    Args:
        fd: Its descriptor.
        footer: Stays below, if this is a terminal.
    """

    def __init__(self, fd: int, footer: Footer) -> None:
        self._fd = fd
        self._footer = footer
        self.is_terminal = os.isatty(fd)

    def write(self, lines: Sequence[bytes]) -> None:
        """Writes the lines; OSError if nobody reads."""
        if not lines:
            return
        text = b"".join(line + b"\n" for line in lines)
        if self.is_terminal and not self._is_taken():
            text = self._footer.erase() + text + self._footer.draw()
        write_all(self._fd, text)

    def show_progress(self, progress: bytes) -> None:
        """Puts a progress bar in place of the one before; empty for none."""
        if self.is_terminal and progress != self._footer.progress:
            self._footer.progress = progress
            self._redraw()

    def show_status(self, status: bytes) -> None:
        """Puts a status in place of the one before; empty for none.

        Of its parts, those are left out for which a line has no room.
        """
        if not self.is_terminal:
            return
        # Longer than a line, it could not be erased; a terminal may not know.
        width = os.get_terminal_size(self._fd).columns or _WIDTH
        shown = _fitting(status, width - 1)
        if shown != self._footer.status:
            self._footer.status = shown
            self._redraw()

    def _is_taken(self) -> bool:
        """Whether a rank's debugger asks there, and writes where it likes."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self._footer.forget()
            return True
        except OSError:  # It cannot be locked.
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    def _redraw(self) -> None:
        if self._is_taken():
            return
        clear = self._footer.erase() or _CLEAR_LINE
        write_all(self._fd, clear + self._footer.draw())


def _fitting(status: bytes, width: int) -> bytes:
    separator = BETWEEN_PARTS.encode()
    shown = b""
    for part in status.split(separator):
        longer = shown + separator + part if shown else part
        if len(longer.decode(errors="replace")) <= width:
            shown = longer
    return shown


def write_all(fd: int, data: bytes) -> None:
    """Writes all of it, however long that takes; OSError if nobody reads."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # Whoever shares it made it non-blocking.
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
