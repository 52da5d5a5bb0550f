"""Whether there is a core for each rank, and whether it may be used all the time."""

from __future__ import annotations

import os

from ring_keras.launch.control_group import cpu_limit
from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.fixes import in_container, write_file
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]


def check(job: JobShape) -> list[Finding]:
    """The cores on which ranks may run, and the time that they get on them."""
    return [_cores(job), _quota(job)]


def _cores(job: JobShape) -> Finding:
    allowed, online = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{allowed} of this machine's {online}"
    measured = {"allowed": allowed, "online": online}
    if allowed >= job.local_size:
        return Finding("cores", State.OK, text, measured=measured)
    if allowed == online:
        fix = f"ringrun -np {allowed} ..."
    elif in_container():
        fix = f"docker run --cpuset-cpus=0-{online - 1} ..."
    else:
        fix = f"taskset --cpu-list 0-{online - 1} ringrun ..."
    return Finding(
        "cores",
        State.WARNING,
        text,
        expected=f"{job.local_size}, one for each rank; otherwise they take turns",
        fix=fix,
        measured=measured,
    )


def _quota(job: JobShape) -> Finding:
    """How many cores' time the control groups give."""
    title = "cgroup cores"
    tightest = cpu_limit()
    if tightest is None:
        return Finding(title, State.OK, "no control group limits their time")
    cores, path = tightest
    text = f"{path} gives the time of {cores:g} cores"
    measured = {"cores": cores}
    if cores >= job.local_size:
        return Finding(title, State.OK, text, measured=measured)
    return Finding(
        title,
        State.WARNING,
        f"{text}: the kernel stops all ranks when it is used up",
        expected=f"that of {job.local_size} cores, one for each rank",
        fix=(
            f"docker run --cpus={job.local_size} ..."
            if in_container()
            else write_file(path, "-1" if path.name == "cpu.cfs_quota_us" else "max")
        ),
        measured=measured,
    )
