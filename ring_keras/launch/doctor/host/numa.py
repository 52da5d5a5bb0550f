"""Whether ranks stay where their memory is, on machines of several NUMA nodes."""

from __future__ import annotations

import os

from ring_keras.launch.binding import allowed_processors
from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]


def check(job: JobShape) -> list[Finding]:
    """The nodes of the processors on which ranks may run."""
    nodes = {processor.node for processor in allowed_processors()}
    if len(nodes) == 1:
        text = f"one node for all {len(os.sched_getaffinity(0))} processors"
        return [Finding("NUMA", State.OK, text)]
    named = f"{len(nodes)} nodes"
    if job.bind_to_cores or job.local_size == 1:
        how = "each rank keeps to its own" if job.bind_to_cores else "one rank"
        return [Finding("NUMA", State.OK, f"{named}; {how}")]
    return [
        Finding(
            "NUMA",
            State.WARNING,
            f"{named}, and ranks may wander between them",
            expected="ranks that keep to a node, and with it to their memory",
            fix=f"ringrun -np {job.local_size} --bind-to cores ...",
            measured={"nodes": len(nodes)},
        )
    ]
