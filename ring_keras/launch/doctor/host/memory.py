"""Whether the ranks fit into the memory that there is, or that may be used."""

from __future__ import annotations

import re
from pathlib import Path

from ring_keras.launch.control_group import MemoryCgroup
from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.fixes import (
    as_root,
    in_container,
    write_file,
)
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check", "spare_nbytes"]

_GB = 10**9
# What a rank of a small model has in the end, most of it TensorFlow: see
# docs/reliability.md, where 100,000 steps are measured.
_OF_RANK_NBYTES = 660 * 10**6
_NEVER_OVERCOMMIT = 2


def check(job: JobShape) -> list[Finding]:
    """The machine's memory, the control group's limit, and overcommitment."""
    needed = job.local_size * _OF_RANK_NBYTES
    return [_machine(job, needed), _group(job, needed), _overcommit()]


def spare_nbytes() -> int:
    """What this process may take, as far as the machine and control groups say."""
    free = 1024 * _meminfo().get("MemAvailable", 0)
    group = MemoryCgroup.of_this_process()
    limit = None if group is None else group.limit_nbytes()
    return free if limit is None else min(free, limit)


def _machine(job: JobShape, needed: int) -> Finding:
    kib = _meminfo()
    total, free = (1024 * kib.get(name, 0) for name in ("MemTotal", "MemAvailable"))
    text = f"{free / _GB:.1f} of {total / _GB:.1f} GB available"
    measured = {"available_bytes": free, "needed_bytes": needed}
    if free >= needed:
        return Finding("memory", State.OK, text, measured=measured)
    return Finding(
        "memory",
        State.WARNING,
        text,
        expected=_expected(job, needed),
        fix=f"ringrun -np {max(1, free // _OF_RANK_NBYTES)} ...",
        measured=measured,
    )


def _group(job: JobShape, needed: int) -> Finding:
    title = "cgroup memory"
    group = MemoryCgroup.of_this_process()
    limit = None if group is None else group.limit_nbytes()
    if group is None or limit is None:
        return Finding(title, State.OK, "no control group limits it")
    text = f"{group.directory} is limited to {limit / _GB:.2f} GB"
    measured = {"limit_bytes": limit, "needed_bytes": needed}
    if limit >= needed:
        return Finding(title, State.OK, text, measured=measured)
    name = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
    gb = -(-2 * needed // _GB)
    return Finding(
        title,
        State.WARNING,
        f"{text}: beyond that the kernel kills a rank",
        expected=_expected(job, needed),
        fix=(
            f"docker run --memory={gb}g ..."
            if in_container()
            else write_file(group.directory / name, str(gb * _GB))
        ),
        measured=measured,
    )


def _overcommit() -> Finding:
    title = "overcommitment"
    try:
        mode = int(Path("/proc/sys/vm/overcommit_memory").read_text())
    except (OSError, ValueError):
        return Finding(title, State.NOT_APPLICABLE, "this system does not say")
    if mode != _NEVER_OVERCOMMIT:
        return Finding(
            title, State.OK, f"memory is taken when it is used (mode {mode})"
        )
    kib = _meminfo()
    left = 1024 * (kib.get("CommitLimit", 0) - kib.get("Committed_AS", 0))
    return Finding(
        title,
        State.WARNING,
        f"memory counts when it is reserved (mode 2), and {left / _GB:.1f} GB are left",
        expected="mode 0 or 1: TensorFlow reserves more than it uses",
        fix=as_root("sysctl -w vm.overcommit_memory=0"),
        measured={"left_bytes": left},
    )


def _expected(job: JobShape, needed: int) -> str:
    return (
        f"{needed / _GB:.2f} GB for {job.local_size} ranks of a small model, and its "
        "variables, activations and data"
    )


def _meminfo() -> dict[str, int]:
    """In KiB."""
    text = Path("/proc/meminfo").read_text()
    return {
        name: int(kib) for name, kib in re.findall(r"^(\w+): +(\d+) kB", text, re.M)
    }
