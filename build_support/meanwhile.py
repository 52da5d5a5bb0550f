"""Runs one command while another is quiet in the background.

`meanwhile.py LOG BACKGROUND COMMAND ...`, BACKGROUND being a line for the shell. What
that says goes into the file LOG, and is shown if it fails. It ends with this program,
whatever ends that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(log_name: str, background: str, *command: str) -> int:
    log = Path(log_name)
    log.parent.mkdir(parents=True, exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []

    def end_all() -> None:
        # Whoever is told twice is not asked again.
        ending = signal.SIGTERM if len(signals) < 2 else signal.SIGKILL
        for process in processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, ending)

    def start(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        # In a group of its own, which can be ended as a whole.
        process = subprocess.Popen(arguments, start_new_session=True, **options)
        processes.append(process)
        if signals:
            end_all()
        return process

    def on_signal(number: int, frame: Any) -> None:
        # No exception: nobody would end a process that is being started just then.
        signals.append(number)
        end_all()

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # As nohup has it.
            signal.signal(number, on_signal)
    with log.open("wb") as file:
        quiet = start(
            ["/bin/sh", "-c", background],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        exit_code = start(command).wait()
        if exit_code == 0 and quiet.wait() != 0 and not signals:
            print(log.read_text(errors="replace"), file=sys.stderr)
            print(f"`{background}` failed; its own words are above.", file=sys.stderr)
            exit_code = 1
    finally:
        end_all()
        quiet.wait()
    return 128 + signals[0] if signals else exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
