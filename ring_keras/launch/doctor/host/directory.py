"""Whether the directory in which ranks start is there."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]


def check(job: JobShape) -> list[Finding]:
    """On several hosts only: on one it is where you are."""
    if job.hosts == 1:
        return []
    if os.access(job.directory, os.X_OK) and Path(job.directory).is_dir():
        return [Finding("directory", State.OK, f"{job.directory} exists here, too")]
    return [
        Finding(
            "directory",
            State.FAILURE,
            f"{job.directory} does not exist here, or may not be entered",
            expected="the directory in which you are, with the script in it",
            fix=f"mkdir -p {shlex.quote(job.directory)}",
        )
    ]
