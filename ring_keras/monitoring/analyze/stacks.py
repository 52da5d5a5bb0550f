"""Stacks of Python threads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Frame", "Stack", "read_stacks", "users_frame"]

_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+).*most recent call first")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')

# Whose frames say nothing about the user's program.
_OF_OTHERS = re.compile(
    r"/(site|dist)-packages/|/lib/python\d|/ring_keras/|^<frozen|^<string>"
)


@dataclass(frozen=True)
class Frame:
    """Where a function has come to."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} ({self.function})"

    @property
    def is_users(self) -> bool:
        """Whether it is of the user's program, rather than of a package."""
        return _OF_OTHERS.search(self.file) is None


@dataclass(frozen=True)
class Stack:
    """Of one thread, innermost frame first."""

    thread: int
    frames: list[Frame] = field(default_factory=list)


def read_stacks(lines: Sequence[str]) -> list[Stack]:
    """Of text as `faulthandler` writes it; of each thread the last."""
    stacks: dict[int, Stack] = {}
    current: Stack | None = None
    for line in lines:
        thread = _THREAD.match(line)
        frame = _FRAME.match(line)
        if thread:
            current = Stack(int(thread[1], 16))
            stacks[current.thread] = current
        elif frame and current is not None:
            current.frames.append(Frame(frame[1], int(frame[2]), frame[3]))
    return list(stacks.values())


def users_frame(stacks: Sequence[Stack], main_thread: int) -> Frame | None:
    """Where the user's program stands.

    A thread whose innermost frame is the user's is at it; one that has called a package
    may wait for another thread, such as a generator's that TensorFlow calls.
    """
    in_order = sorted(stacks, key=lambda stack: stack.thread != main_thread)
    at_it = [s.frames[0] for s in in_order if s.frames and s.frames[0].is_users]
    through_others = [
        frame
        for stack in sorted(in_order, key=lambda s: s.thread == main_thread)
        for frame in stack.frames
        if frame.is_users
    ]
    return next(iter([*at_it, *through_others]), None)
