"""How one rank's run of a worker ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

# Of each text that a failure prints, at its beginning and at its end.
_END_CHARS = 4000


@dataclass(frozen=True)
class RankOutcome:
    """How one rank's run of a worker ended.

    Attributes:
        rank: The rank.
        pid: Its process.
        result: What the worker returned; None if it did not.
        returned: Whether the worker returned.
        exception_type: Name of the class of what it raised, None if nothing.
        exception_bases: Names of all classes of what it raised.
        message: `str` of what it raised.
        traceback: Text of what it raised.
        returncode: The process's exit code, negative for a signal, None while
            the process lives on (in a pool).
        timed_out: Whether it was killed because the deadline passed.
        stdout: What the process printed meanwhile.
        stderr: The same of its standard error.
        seconds: From the start of the run to `ended_at`.
        ended_at: `time.monotonic()` when the worker returned or raised, or else
            when the process was seen to end. Comparable across ranks.
    """

    rank: int
    pid: int
    result: Any
    returned: bool
    exception_type: str | None
    exception_bases: tuple[str, ...]
    message: str
    traceback: str
    returncode: int | None
    timed_out: bool
    stdout: str
    stderr: str
    seconds: float
    ended_at: float

    @property
    def ok(self) -> bool:
        """Whether the worker returned, and the process ended well after it."""
        return self.returned and self.returncode in (None, 0) and not self.timed_out

    @property
    def signal(self) -> int | None:
        """The signal that ended the process, or None."""
        if self.returncode is None or self.returncode >= 0:
            return None
        return -self.returncode

    def describe(self) -> str:
        """What a test's failure prints of this rank."""
        lines = [f"--- rank {self.rank} (pid {self.pid}): {self._ending()}"]
        for title, text in (
            ("traceback", self.traceback),
            ("stdout", self.stdout),
            ("stderr", self.stderr),
        ):
            if text.strip():
                lines += [f"[{title}]", _shortened(text)]
        return "\n".join(lines)

    def _ending(self) -> str:
        if self.timed_out:
            how = "ran past the deadline"
        elif self.exception_type is not None:
            how = f"raised {self.exception_type}"
        elif self.signal is not None:
            how = f"was killed by {signal.Signals(self.signal).name}"
        elif not self.returned:
            how = f"exited with code {self.returncode} before the worker returned"
        elif self.returncode:
            how = f"exited with code {self.returncode} after the worker returned"
        else:
            how = "returned"
        return f"{how} after {self.seconds:.2f} s"


def _shortened(text: str) -> str:
    """Without its middle, and without what faulthandler lists of loaded modules."""
    kept = (x for x in text.splitlines() if not x.startswith("Extension modules:"))
    text = "\n".join(kept).strip()
    left_out = len(text) - 2 * _END_CHARS
    if left_out <= 0:
        return text
    return f"{text[:_END_CHARS]}\n[... {left_out} characters ...]\n{text[-_END_CHARS:]}"
