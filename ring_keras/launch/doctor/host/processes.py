"""Whether this user may start as many processes and threads as the ranks need."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from ring_keras.launch.control_group import own_group
from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.fixes import (
    in_container,
    raise_limit,
    write_file,
)
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]

# The engine's, TensorFlow's own, and Python's; and TensorFlow's pools, which have a
# thread for each core: for ops, between ops, and for data.
_THREADS = 24
_THREADS_OF_CORE = 3


def check(job: JobShape) -> list[Finding]:
    """RLIMIT_NPROC, which threads count for, and what control groups say."""
    cores = len(os.sched_getaffinity(0))
    needed = job.local_size * (_THREADS + _THREADS_OF_CORE * cores)
    return [_user_limit(job, needed), _group_limit(job, needed)]


def _user_limit(job: JobShape, needed: int) -> Finding:
    title = "processes"
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() == 0:
        return Finding(title, State.OK, "root has no limit of processes and threads")
    if soft == resource.RLIM_INFINITY:
        return Finding(title, State.OK, "no limit of processes and threads")
    used = _threads_of_user(os.getuid())
    measured = {"limit": soft, "used": used, "needed": needed}
    text = f"{soft:,} processes and threads of this user, who has {used:,}"
    if soft - used >= needed:
        return Finding(title, State.OK, text, measured=measured)
    return Finding(
        title,
        State.WARNING,
        text,
        expected=f"{needed:,} more for {job.local_size} ranks",
        fix=raise_limit("nproc", str(used + 2 * needed), job),
        measured=measured,
    )


def _group_limit(job: JobShape, needed: int) -> Finding:
    title = "cgroup processes"
    group = own_group("pids", {1: "pids.max", 2: "pids.max"})
    tightest: tuple[int, Path, int, int] | None = None
    for path in group.files("pids.max") if group is not None else ():
        word = path.read_text().strip()
        if word == "max":
            continue
        used = int((path.parent / "pids.current").read_text())
        if tightest is None or int(word) - used < tightest[0]:
            tightest = (int(word) - used, path, int(word), used)
    if tightest is None:
        return Finding(title, State.OK, "no control group limits them")
    room, path, limit, used = tightest
    measured = {"limit": limit, "used": used, "needed": needed}
    text = f"{path} is {limit:,}, of which {used:,} are in use"
    if room >= needed:
        return Finding(title, State.OK, text, measured=measured)
    return Finding(
        title,
        State.WARNING,
        text,
        expected=f"{needed:,} more processes and threads for {job.local_size} ranks",
        fix=(
            f"docker run --pids-limit={used + 2 * needed} ..."
            if in_container()
            else write_file(path, "max")
        ),
        measured=measured,
    )


def _threads_of_user(user: int) -> int:
    """As the kernel counts them for that limit."""
    count = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid == user:
                count += sum(1 for _ in (entry / "task").iterdir())
        except OSError:  # It has ended, or hides.
            continue
    return count
