"""What a job prints, shown where this process's own output is."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import selectors
import sys
import termios
from typing import IO

__all__ = ["JobOutput", "ShownInCell", "ShownText"]

_READ_NBYTES = 1 << 16
# How ringrun takes back a line that is not finished, such as a progress bar.
_CLEAR_LINE = "\r\x1b[K"
_PART_OF_IT = re.compile(r"\r(\x1b\[?)?\Z")


class ShownText:
    """Writes bytes as text."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> None:
        """Takes bytes; none: these were all."""
        text = self._as_shown(self._decoder.decode(data, final=not data), not data)
        if text:
            self._stream.write(text)
            self._stream.flush()

    def _as_shown(self, text: str, final: bool) -> str:
        return text


class ShownInCell(ShownText):
    """The same for a notebook's cell, which knows of carriage returns alone."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._held = ""
        self._width = 0

    def _as_shown(self, text: str, final: bool) -> str:
        text, self._held = self._held + text, ""
        if not final and (part := _PART_OF_IT.search(text)):
            text, self._held = text[: part.start()], text[part.start() :]
        first, *rest = text.split(_CLEAR_LINE)
        shown = [first]
        self._note(first)
        for piece in rest:
            shown += ["\r", " " * self._width, "\r"] if self._width else []
            shown.append(piece)
            self._width = 0
            self._note(piece)
        return "".join(shown)

    def _note(self, piece: str) -> None:
        _, newline, line = piece.rpartition("\n")
        self._width = len(line) if newline else self._width + len(line)


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
