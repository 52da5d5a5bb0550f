"""How the steps of a release run other programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class ReleaseError(Exception):
    """The release cannot be made; the message says why, and what to do."""


def run(
    *command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Runs it, with its output on ours.

    Raises:
        ReleaseError: If it fails.
    """
    sys.stdout.flush()
    result = subprocess.run([str(part) for part in command], cwd=cwd, env=env)
    if result.returncode != 0:
        raise ReleaseError(_failure(command, result.returncode))


def output_of(*command: str | Path, cwd: Path | None = None) -> str:
    """What it prints.

    Raises:
        ReleaseError: If it fails; both outputs are in the message.
    """
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        said = f"{result.stdout}{result.stderr}"
        raise ReleaseError(f"{_failure(command, result.returncode)}:\n{said}")
    return result.stdout


def _failure(command: tuple[str | Path, ...], code: int) -> str:
    return f"`{' '.join(map(str, command))}` ended with exit code {code}"
