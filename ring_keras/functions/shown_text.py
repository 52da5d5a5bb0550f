"""What ringrun writes, as text for a stream of Python's."""

from __future__ import annotations

import codecs
import re
from typing import IO

__all__ = ["ShownInCell", "ShownText"]

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
