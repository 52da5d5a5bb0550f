"""A terminal for ringrun to write to, and reports of ranks for it to show."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import termios
import time

# Reports as a rank's library does, but once and not each second.
REPORT = """
import json
def report(steps, waited_for_s):
    totals = dict(steps=steps, process_set=0, examples=8 * steps,
                  duration_s=0.1 * steps, input_s=0,
                  compute_s=0.08 * steps, wait_s=0.02 * steps, exposed_s=0, bytes=9)
    waits = {"waited_for_s": waited_for_s, "waits_for_s": {}}
    line = json.dumps({"rank": rank, **totals, **waits})
    pipe = os.open(os.environ["RING_KERAS_REPORT_PIPE"], os.O_WRONLY)
    os.write(pipe, line.encode() + b"\\n")
    os.close(pipe)
"""


class Terminal:
    """One for ringrun to write to, or a shell that reads keys."""

    def __init__(self) -> None:
        self._own, self.fd = os.openpty()
        self.set_columns(120)
        self.shown = b""

    def set_columns(self, columns: int) -> None:
        """Makes it that wide."""
        size = struct.pack("HHHH", 25, columns, 0, 0)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, size)

    def read_until(self, pattern: bytes) -> re.Match[bytes]:
        """Reads what is written, until that has been, after what it found before."""
        deadline = time.monotonic() + 60
        while (found := re.search(pattern, self.shown, re.DOTALL)) is None:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self._own], [], [], left)[0], self.shown
            self.shown += os.read(self._own, 1 << 16)
        self.shown = self.shown[found.end() :]
        return found

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self._own, text.encode())

    def close(self) -> None:
        """No process may use it any more."""
        os.close(self._own)
        os.close(self.fd)
