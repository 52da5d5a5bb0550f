"""An elastic job that a fault comes to, and what must have come of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path

from support.faults.cases import CUT_OFF, INHERITED, LAUNCHER_KILLED, Case
from support.faults.commit import HELD_S, HOST_FAULT
from support.job import light_environment
from support.lost_launcher import launcher_of
from support.processes import wait_until
from support.ringrun import Ringrun
from support.ssh_hosts import SshHosts

# TensorFlow is imported by each, and a fault may have to be waited for.
TIMEOUT_S = 300
# From the fault to the first step of fewer ranks, which is traced anew.
GOES_ON_S = 20.0
HEARTBEATS_S = 6.0
# Until a host is given up that others still hear.
SILENT_HOST_S = 12.0
# Until an agent that hears no launcher has begun one.
HEIR_S = 5.0
# Until one begins if it may still be there, and ranks have asked it again.
SILENT_LAUNCHER_S = 45.0
# How long ranks look for a store that was lost before they reached it.
INIT_TIMEOUT_S = 20
# Until the ranks of a host that was cut off have ended, once it hears others again.
CUT_OFF_ENDS_S = 90.0


def require_going_on(case: Case, directory: Path) -> None:
    """All others end their `fit`, alike and soon, and leave nothing behind.

    Where the launcher is killed, all end.
    """
    ringrun = Ringrun(directory)
    with contextlib.closing(ringrun):
        process = ringrun.start_raw(
            *("-np", str(case.size), "--min-np", "1", "--reset-limit", "3"),
            *_command(case, directory),
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
    _require_ends(case, directory, said)


def require_going_on_elsewhere(case: Case, hosts: SshHosts, directory: Path) -> None:
    """The same of ranks on hosts of their own, whose launcher may be lost."""
    ringrun = Ringrun(directory, hosts.on(0))
    try:
        process = ringrun.start_raw(
            *("-np", str(case.size), "--min-np", "1", "--reset-limit", "3"),
            *("-H", ",".join(f"{name}:1" for name in hosts.host_names)),
            *("--card", str(directory / "card"), "--heirs", "--grace-period", "2"),
            *("--ssh-args", hosts.ssh_args),
            *_command(case, directory),
            env=light_environment()
            | {"RING_KERAS_INIT_TIMEOUT_S": str(INIT_TIMEOUT_S)},
        )
        # Before that, children of the front one may be those that make the host.
        wait_until((directory / "card").exists, "the card is there", TIMEOUT_S)
        fault = f"kill -KILL {launcher_of(process.pid)}"
        if case.fault == CUT_OFF:
            fault = " ".join(hosts.cutting_off(case.victim))
        (directory / HOST_FAULT).write_text(fault)
        ends = [directory / f"end.{number}" for number in _survivors(case)]
        wait_until(lambda: all(end.exists() for end in ends), "all end", TIMEOUT_S)
        hosts.set_link(case.victim, "up")
        hosts.wait_until_empty(CUT_OFF_ENDS_S)
        said = ringrun.finish(process).stderr.decode(errors="replace")[-8000:]
    finally:
        hosts.clean()
        ringrun.close()  # Prints what it has said.
    if case.fault != INHERITED and (case.fault, case.victim) != (CUT_OFF, 0):
        assert process.returncode == 0, said
    _require_ends(case, directory, said)


def _command(case: Case, directory: Path) -> list[str]:
    module = "support.faults.elastic_rank"
    fields = json.dumps(dataclasses.asdict(case))
    return [sys.executable, "-m", module, str(directory), fields]


def _lost(case: Case) -> set[int]:
    """The ranks that are to be lost."""
    lost = set() if case.fault == INHERITED else {case.victim}
    if case.place == "while a generation forms":
        lost.add((case.victim + 1) % case.size)
    return lost


def _survivors(case: Case) -> set[int]:
    return set(range(case.size)) - _lost(case)


def _require_ends(case: Case, directory: Path, said: str) -> None:
    """Those that are left have done all, and only that, alike."""
    survivors = _survivors(case)
    changes = len(_lost(case)) + (case.fault == INHERITED)
    ends = {path.name for path in directory.glob("end.*")}
    assert ends == {f"end.{number}" for number in survivors}, said
    found = [json.loads((directory / name).read_text()) for name in sorted(ends)]
    committed_at = float((directory / "fault").read_text())
    for one in found:
        assert one["digest"] == found[0]["digest"], (found, said)
        assert one["epochs"] == [0, 1, 2], one
        assert one["most"] == 3, one
        # Fewer than there are ranks, at each change.
        assert 0 <= one["left_out"] <= changes * (case.size - 1), one
        assert one["sizes"][0] == case.size, one
        assert one["sizes"][1:], one
        assert one["sizes"][-1] == len(survivors), one
        went_on_s = one["went_on_at"] - committed_at
        assert went_on_s < _patience_s(case) + GOES_ON_S, (went_on_s, said)


def _patience_s(case: Case) -> float:
    """How long it takes until the fault is noticed, and somebody may act on it."""
    forms = case.place == "while a generation forms"
    if case.fault == INHERITED:
        return HEIR_S + INIT_TIMEOUT_S * forms
    if case.fault == CUT_OFF:
        return SILENT_LAUNCHER_S if case.victim == 0 else SILENT_HOST_S
    if case.fault != "SIGSTOP":
        return 0.0
    # One that is about to join cannot be told from one that is slow.
    return HELD_S if forms else HEARTBEATS_S


def _processes_of(directory: Path) -> list[str]:
    """Whose command names the directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if str(directory).encode() in command:
                found.append(command.replace(b"\0", b" ").decode())
    return found
