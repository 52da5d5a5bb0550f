"""What `ringrun --check-build` finds, or one check on a host that lacks something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT_DIR = Path(__file__).resolve().parents[2]

_CHECK = """
import importlib, json, os, sys
from ring_keras.launch.doctor.finding import as_json
from ring_keras.launch.doctor.job_shape import JobShape
check = importlib.import_module("ring_keras.launch.doctor.host." + sys.argv[1]).check
if sys.argv[3:]:  # Who may not be able to read this Python.
    os.setresuid(*[int(sys.argv[3])] * 3)
job = JobShape.from_json(json.loads(sys.argv[2]))
print(json.dumps([as_json(finding) for finding in check(job)]))
"""


@dataclass(frozen=True)
class Checked:
    """A check that has ended.

    Attributes:
        returncode: Its exit code.
        report: Its JSON.
    """

    returncode: int
    report: dict[str, Any]

    def of_host(self, name: str, check: str) -> list[dict[str, Any]]:
        """The host's findings of that check."""
        (host,) = (host for host in self.report["hosts"] if host["name"] == name)
        return [found for found in host["findings"] if found["check"] == check]

    def between(self, check: str) -> list[dict[str, Any]]:
        """Findings of that check about several hosts."""
        return [
            found for found in self.report["between_hosts"] if found["check"] == check
        ]


def check_build(
    *options: str, before: Sequence[str] = (), timeout_s: float = 120
) -> Checked:
    """Runs ringrun, after the words that put it on a host, say."""
    ended = subprocess.run(
        [
            *(*before, sys.executable, "-m", "ring_keras.launch"),
            *(*options, "--check-build", "--json"),
        ],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ended.stdout, ended.stderr
    return Checked(ended.returncode, json.loads(ended.stdout))


def findings_of(
    check: str,
    *,
    before: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    user: int | None = None,
    **job: Any,
) -> dict[str, dict[str, Any]]:
    """What one check finds, in a process of its own, by its title.

    Args:
        check: The file's name.
        before: Words before the command, which limit it, say.
        env: More variables.
        user: Whose process it is, if not this user's.
        job: What differs from two ranks on one host.
    """
    shape = {
        "local_size": 2,
        "size": job.get("local_size", 2),
        "hosts": 1,
        "holds_store": True,
        "bind_to_cores": False,
        "directory": str(ROOT_DIR),
    } | job
    ended = subprocess.run(
        [
            *(*before, sys.executable, "-c", _CHECK, check, json.dumps(shape)),
            *([] if user is None else [str(user)]),
        ],
        env=environment() | dict(env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return {found["check"]: found for found in json.loads(ended.stdout)}


def environment() -> dict[str, str]:
    """This process's, in which ring_keras is that of the tests."""
    path = os.pathsep.join(filter(None, [str(ROOT_DIR), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}
