"""An agent's part: passes questions on to the program that looks at its host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ring_keras.launch.loop import Loop

__all__ = ["HostProgram"]

_READ_NBYTES = 1 << 16


class HostProgram:
    """The program, as a child that answers through the loop.

    Args:
        loop: Calls back.
        environment: Of ranks here.
        on_answer: Gets each answer.
    """

    def __init__(
        self,
        loop: Loop,
        environment: Mapping[str, str],
        on_answer: Callable[[dict[str, Any]], None],
    ) -> None:
        self._loop = loop
        self._on_answer = on_answer
        self._rest = b""
        self._child = subprocess.Popen(
            [sys.executable, "-m", "ring_keras.launch.doctor.host_program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        assert self._child.stdout is not None
        self._fd = self._child.stdout.fileno()
        loop.on_readable(self._fd, self._read)

    def ask(self, question: Mapping[str, Any]) -> None:
        """Asks; it takes one question after the other."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
        except OSError:
            self._on_answer({"problem": "the program that looks at it has ended"})

    def _read(self) -> None:
        data = os.read(self._fd, _READ_NBYTES)
        if not data:
            self._loop.forget(self._fd)
            self._on_answer({"problem": "the program that looks at it has ended"})
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_answer(json.loads(line))
