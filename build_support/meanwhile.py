"""Runs one command while another is quiet in the background.

`meanwhile.py LOG BACKGROUND COMMAND ...`, BACKGROUND being a line for the shell. What
that says goes into the file LOG, and is shown if it fails. It ends with this program,
whatever ends that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def main(log_name: str, background: str, *command: str) -> int:
    # As an exception, so that both end.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    log = Path(log_name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        # In a group of its own, which can be ended as a whole.
        quiet = subprocess.Popen(
            ["/bin/sh", "-c", background],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        exit_code = subprocess.call(command)
        if exit_code == 0 and quiet.wait() != 0:
            print(log.read_text(errors="replace"), file=sys.stderr)
            print(f"`{background}` failed; its own words are above.", file=sys.stderr)
            exit_code = 1
    finally:
        if quiet.poll() is None:
            os.killpg(quiet.pid, signal.SIGTERM)
            quiet.wait()
    return exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
