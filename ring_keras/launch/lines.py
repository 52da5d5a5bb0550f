"""Cuts a stream of bytes into lines, as a terminal would show them."""

from __future__ import annotations

# A longer line is broken: memory is bounded, whatever a rank prints.
MAX_LINE_NBYTES = 16 * 1024 * 1024


class LineBuffer:
    r"""The end of a stream that no newline has ended yet.

    A carriage return goes back to the start of the line, as progress bars do:
    of `10%\r20%\r30%\n` the line `30%` remains. Bytes pass as they are, valid
    UTF-8 or not.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Takes bytes; returns the lines they complete, without newline."""
        searched = len(self._pending)
        self._pending += data
        lines = []
        start = 0
        while (end := self._pending.find(b"\n", max(start, searched))) >= 0:
            lines.append(_shown(bytes(self._pending[start:end])))
            start = end + 1
        del self._pending[:start]
        if len(self._pending) > MAX_LINE_NBYTES:
            lines += self.finish()
        return lines

    def finish(self) -> list[bytes]:
        """The last line, if the stream does not end with a newline."""
        pending, self._pending = bytes(self._pending), bytearray()
        return [_shown(pending)] if pending else []

    def progress(self) -> bytes | None:
        """What a progress bar shows now; None if the line is not one."""
        if b"\r" not in self._pending:
            return None
        return _shown(bytes(self._pending))


def _shown(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]
