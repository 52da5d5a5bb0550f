"""`ringrun --check-build`: whether hosts can run a job, how fast, and what to fix."""

from __future__ import annotations

from pathlib import Path

from ring_keras.launch.doctor.examination import Examination, examine
from ring_keras.launch.guard import run_guarded
from ring_keras.launch.output import say, to_reader

__all__ = ["check_build"]


def check_build(examination: Examination, *, as_json: bool, verbose: bool) -> int:
    """Prints what is found; returns 1 if a job cannot run so, else 0."""

    def look(front_fd: int, directory: Path) -> int:
        try:
            report = examine(examination, front_fd, directory)
        except OSError as error:
            say(f"cannot look at the hosts: {error}")
            return 1

        def write() -> int:
            print(report.as_json() if as_json else report.as_text(verbose))
            return report.exit_code

        return to_reader(write)

    return run_guarded(look, what="doctor")
