"""An elastic job that a fault comes to, and what must have come of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path

from support.faults.cases import LAUNCHER_KILLED, Case
from support.faults.commit import HELD_S
from support.job import light_environment
from support.ringrun import Ringrun

# TensorFlow is imported by each, and a fault may have to be waited for.
TIMEOUT_S = 300
# From the fault to the first step of fewer ranks, which is traced anew.
GOES_ON_S = 20.0
HEARTBEATS_S = 6.0


def require_going_on(case: Case, directory: Path) -> None:
    """All others end their `fit`, alike and soon, and leave nothing behind.

    Where the launcher is killed, all end.
    """
    ringrun = Ringrun(directory)
    with contextlib.closing(ringrun):
        arguments = (str(directory), json.dumps(dataclasses.asdict(case)))
        process = ringrun.start_raw(
            *("-np", str(case.size), "--min-np", "1", "--reset-limit", "3"),
            *(sys.executable, "-m", "support.faults.elastic_rank", *arguments),
            env=light_environment() | {"RING_KERAS_TRANSPORT": case.transport},
        )
        finished = ringrun.finish(process, TIMEOUT_S)
    said = finished.stderr.decode(errors="replace")[-8000:]
    assert list(ringrun.temporary.iterdir()) == []
    assert _processes_of(directory) == []
    if case.fault == LAUNCHER_KILLED:
        assert finished.returncode == 137, said
        assert "its launcher process was killed by SIGKILL" in finished.verdict
        return
    assert finished.returncode == 0, said
    lost = {case.victim}
    if case.place == "while a generation forms":
        lost.add((case.victim + 1) % case.size)
    survivors = set(range(case.size)) - lost
    ends = {path.name for path in directory.glob("end.*")}
    assert ends == {f"end.{number}" for number in survivors}, said
    found = [json.loads((directory / name).read_text()) for name in sorted(ends)]
    committed_at = float((directory / "fault").read_text())
    for one in found:
        assert one["digest"] == found[0]["digest"], (found, said)
        assert one["epochs"] == [0, 1, 2], one
        assert one["most"] == 3, one
        # Fewer than there are ranks, at each change.
        assert 0 <= one["left_out"] <= len(lost) * (case.size - 1), one
        assert one["sizes"][0] == case.size, one
        assert one["sizes"][-1] == len(survivors), one
        went_on_s = one["went_on_at"] - committed_at
        assert went_on_s < _patience_s(case) + GOES_ON_S, (went_on_s, said)


def _patience_s(case: Case) -> float:
    """How long it takes until the fault is noticed."""
    if case.fault != "SIGSTOP":
        return 0.0
    # One that is about to join cannot be told from one that is slow.
    return HELD_S if case.place == "while a generation forms" else HEARTBEATS_S


def _processes_of(directory: Path) -> list[str]:
    """Whose command names the directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if str(directory).encode() in command:
                found.append(command.replace(b"\0", b" ").decode())
    return found
