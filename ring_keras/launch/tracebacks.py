"""Recognises a traceback of Python's among the lines of a rank's standard error."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

__all__ = ["START", "Traceback"]

START = b"Traceback (most recent call last):"
# Between an exception and one that was raised because of it, or while it was handled.
_CHAINS = (
    b"The above exception was the direct cause of the following exception:",
    b"During handling of the above exception, another exception occurred:",
)
# What other threads log, of TensorFlow for one, may come between.
_LOGGED = re.compile(rb"[IWEF]\d{4} |\d{4}-\d\d-\d\d \d\d:|\[ring_keras\b")
_RAISED = re.compile(rb"([A-Za-z_][\w.]*)(?::\s+(.*))?$", re.DOTALL)

# Whose error it is, if it only tells of another rank's.
_FOLLOWS = re.compile(
    rb"\bPeerLostError: (?:\[RK\d+\] )?rank (\d+) \(host "
    rb"|\bRankMismatchError: (?:\[RK\d+\] )?"
    rb"(?:ring_keras\.\w+ failed on rank (\d+):"
    rb"|.*?: rank (\d+) cannot take part:)"
)
# ring_keras's own, which TensorFlow puts into one of its own.
_OURS = re.compile(
    rb"\b((?:CollectiveTimeout|CorruptData|NotInitialized|PeerLost|RankMismatch"
    rb"|RingKeras)Error): (.*)"
)

# Where two ranks with the same error differ.
_OWN = [
    (re.compile(rb"\b0x[0-9a-fA-F]+"), b"0x"),
    (re.compile(rb"\b([Rr]ank|RANK|pid)([ .=:]|=')\d+"), rb"\1\2"),
    (re.compile(rb"\b\d+\.\d+\.\d+\.\d+(?::\d+)?"), b"address"),
    (re.compile(rb"(__inference_\w*?)\d+\b"), rb"\1"),
]
# TensorFlow's errors of graphs go on for many lines, the last of which is such.
_END_OF_GRAPH_ERROR = re.compile(rb"\[Op:\w+\]")


# Of the package's own frames, on this host.
_FRAME = b'  File "'
_OUR_FRAME = _FRAME + os.fsencode(f"{Path(__file__).parent.parent}{os.sep}")
# Those that say nothing, either: `errors.translated()` is a decorator of contextlib's.
_DECORATORS_FRAME = re.compile(
    rb'  File "[^"]*/contextlib\.py", line \d+, in (?:inner|__exit__)$'
)
# Of packages, Python's own too, and of functions that they generate.
_OTHERS_FRAME = re.compile(
    rb'  File "(?:[^"]*/(?:(?:site|dist)-packages|lib/python3\.\d+)/|<string>|<frozen )'
)
_PLACE = re.compile(rb'  File "([^"]*)", line (\d+)')
_CODE = re.compile(rb"\[RK\d{3}\] ")
# Of Keras's that leave its own out, unless the user asks for all of them by
# `keras.config.disable_traceback_filtering()`.
_KERAS_FRAME = re.compile(
    rb'  File "[^"]*/keras/src/utils/traceback_utils\.py", line \d+, in error_handler'
)
_KERAS_UNFILTERED = b"return fn(*args, **kwargs)"


class _Part(Enum):
    FRAMES = auto()
    MESSAGE = auto()


@dataclass
class Line:
    """One that a rank has printed, and what it is shown after."""

    prefix: bytes
    text: bytes


@dataclass(eq=False)
class Traceback:
    """The lines of one, those of exceptions that led to it included.

    What follows its last exception may be more of the message, or no part of it:
    only a comparison with another rank's tells.
    """

    rank: int
    lines: list[Line]
    _part: _Part = _Part.FRAMES
    _raised_at: int | None = None
    _normal: dict[bytes, bytes] = field(default_factory=dict)

    def take(self, line: Line) -> bool:
        """Takes the next line that the rank has printed; False if it is another's."""
        text = line.text
        if self._part is _Part.MESSAGE and text == START:
            if not self._is_chained():
                return False
            self._part = _Part.FRAMES
        elif self._part is _Part.FRAMES and _ends_frames(text):
            self._part = _Part.MESSAGE
            self._raised_at = len(self.lines)
        self.lines.append(line)
        return True

    @property
    def name(self) -> str:
        """The exception's class, without its module."""
        return self._raised()[0].rpartition(".")[2]

    @property
    def message(self) -> str:
        """The first line of its text."""
        return self._raised()[1]

    @property
    def follows(self) -> int | None:
        """The rank whose failure it tells of; None if it is a failure of its own."""
        if self._raised_at is None:
            return None
        for line in self.lines[self._raised_at :]:
            if found := _FOLLOWS.search(line.text):
                rank = int(next(filter(None, found.groups())))
                return None if rank == self.rank else rank
        return None

    @property
    def place(self) -> str:
        """The last line of the user's own that was running."""
        frames = [line.text for line in self.lines if line.text.startswith(_FRAME)]
        own = [f for f in frames if not _is_our_frame(f) and not _OTHERS_FRAME.match(f)]
        found = _PLACE.match((own or frames or [b""])[-1])
        return "{}, line {}".format(*map(os.fsdecode, found.groups())) if found else "?"

    def key(self) -> tuple[bytes, ...]:
        """What it has in common with other ranks' that are the same, as it is shown."""
        after = 0 if self._raised_at is None else len(self.lines) - self._raised_at - 1
        shown = self.shown_lines()
        return tuple(
            self._normalized(line)
            for line in shown[: len(shown) - after]
            if not _LOGGED.match(line.text)
        )

    def shown_lines(self) -> list[Line]:
        """All but our own frames, if the error has a code: its text says enough.

        And but for TensorFlow's error from which ours was made, if that says no more.
        Where the user has Keras show its own frames, all stay.
        """
        end = 0 if self._raised_at is None else self._raised_at
        raised = self.lines[end:]
        has_code = any(_CODE.search(line.text) for line in raised)
        if not has_code or self._has_all_of_keras():
            return list(self.lines)
        begin = self._end_of_same_cause(end)
        frames = self._logged_before(begin)
        is_ours = False
        for line in self.lines[begin:end]:
            if _LOGGED.match(line.text):
                frames.append(line)
                continue
            if not line.text.startswith(b"   "):  # The frame that was has ended.
                is_ours = _is_our_frame(line.text)
            if not is_ours:
                frames.append(line)
        if not any(line.text.startswith(_FRAME) for line in frames):
            return list(self.lines)
        return frames + raised

    def _end_of_same_cause(self, end: int) -> int:
        """Where the last exception begins, if the one before it says the same.

        And has no line of the user's, as one that an op raises at once.
        """
        texts = [line.text for line in self.lines[: end + 1]]
        if _CHAINS[0] not in texts:
            return 0
        chain = len(texts) - 1 - texts[::-1].index(_CHAINS[0])
        begin = texts.index(START, chain)
        cause = [text for text in texts[:chain] if text and not _LOGGED.match(text)]
        said = [text for text in cause if not text.startswith(b" ")]
        frames = [text for text in cause if text.startswith(_FRAME)]
        first, last = (_OURS.search(text) for text in (said[-1], texts[end]))
        is_same = first and last and first[0].startswith(last[0])
        is_of_others = all(_is_our_frame(f) or _OTHERS_FRAME.match(f) for f in frames)
        return begin if is_same and is_of_others and len(said) == 2 else 0

    def _has_all_of_keras(self) -> bool:
        return any(
            _KERAS_FRAME.match(frame.text) and code.text.strip() == _KERAS_UNFILTERED
            for frame, code in itertools.pairwise(self.lines)
        )

    def beyond(self, shown: Traceback) -> list[Line]:
        """The lines that the other, of the same key, does not show as well."""
        assert self._raised_at is not None and shown._raised_at is not None
        ours, theirs = self._raised_at + 1, shown._raised_at + 1
        while (
            ours < len(self.lines)
            and theirs < len(shown.lines)
            and self._normalized(self.lines[ours])
            == shown._normalized(shown.lines[theirs])
        ):
            ours, theirs = ours + 1, theirs + 1
        return self._logged_before(ours) + self.lines[ours:]

    def beyond_message(self) -> list[Line]:
        """The lines that are certainly no part of it."""
        assert self._raised_at is not None
        end = self._raised_at + 1
        for index in range(end, len(self.lines)):
            if _END_OF_GRAPH_ERROR.search(self.lines[index].text):
                end = index + 1
        return self._logged_before(end) + self.lines[end:]

    def _raised(self) -> tuple[str, str]:
        assert self._raised_at is not None
        for line in self.lines[self._raised_at :]:
            if found := _OURS.search(line.text):
                return found[1].decode(), found[2].decode(errors="replace")
        found = _RAISED.match(self.lines[self._raised_at].text)
        assert found is not None
        name, message = found.groups(b"")
        return name.decode(), message.decode(errors="replace")

    @property
    def is_whole(self) -> bool:
        """Whether it says what was raised."""
        if self._raised_at is None or self._part is _Part.FRAMES:
            return False
        return _RAISED.match(self.lines[self._raised_at].text) is not None

    def _is_chained(self) -> bool:
        before = [line.text for line in self.lines[-3:] if line.text]
        return bool(before) and before[-1] in _CHAINS

    def _logged_before(self, end: int) -> list[Line]:
        return [line for line in self.lines[:end] if _LOGGED.match(line.text)]

    def _normalized(self, line: Line) -> bytes:
        if line.text not in self._normal:
            text = line.text
            for own, common in _OWN:
                text = own.sub(common, text)
            self._normal[line.text] = text
        return self._normal[line.text]


def _is_our_frame(text: bytes) -> bool:
    return text.startswith(_OUR_FRAME) or bool(_DECORATORS_FRAME.match(text))


def _ends_frames(text: bytes) -> bool:
    return bool(text) and not text.startswith(b" ") and _LOGGED.match(text) is None
