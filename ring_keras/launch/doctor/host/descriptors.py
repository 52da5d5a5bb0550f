"""Whether a process may open as many descriptors as ranks and the store need."""

from __future__ import annotations

import resource

from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.remedies import raise_limit
from ring_keras.launch.doctor.host.settings import config
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check", "needed_by_rank", "needed_by_store"]

# As tf_ops/common/descriptors.cc and tf_ops/rendezvous/limits.h have them.
_OTHERS = 256
_SPARE = 64
# Up to so many ranks on other hosts, all are connected from the start
# (tf_ops/runtime/init_options.h); beyond, alltoall alone connects all.
_MAX_DIRECT = 24
# A segment and a doorbell of each rank that shares memory.
_FOR_NEIGHBOUR = 2
_PIPES = 2
# Of the hosts' agents, ringrun holds input, output and error.
_FOR_AGENT = 3
_LARGEST_JOB = 4096


def check(job: JobShape) -> list[Finding]:
    """The hard limit, up to which ring_keras raises its own."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    by_tcp = config().transport == "tcp"
    peers = job.size - 1 if by_tcp else job.remote_size
    neighbours = 0 if by_tcp else job.local_size - 1
    streams = config().tcp_streams
    needed = needed_by_rank(neighbours, peers, streams)
    who = "each rank"
    if job.holds_store and needed_by_store(job) > needed:
        needed, who = needed_by_store(job), "ringrun, with the job's store,"
    unlimited = hard == resource.RLIM_INFINITY
    text = "no limit" if unlimited else f"up to {hard:,}"
    measured = {"needed": needed} if unlimited else {"hard_limit": hard}
    if not unlimited and hard < needed:
        return [
            Finding(
                "open files",
                State.FAILURE,
                text,
                expected=f"{needed:,}, which {who} may need with {job.size} ranks",
                mend=raise_limit("nofile", str(2 * needed), job),
                measured={**measured, "needed": needed},
            )
        ]
    largest = _LARGEST_JOB if unlimited else _largest_job(hard, streams)
    text += f"; {who} may need {needed:,}"
    if largest >= _LARGEST_JOB:
        text += f"; enough for {_LARGEST_JOB:,} ranks"
    else:
        text += f"; enough for {largest:,} ranks, one on each host"
    measured = {**measured, "needed": needed, "largest_size": largest}
    return [Finding("open files", State.OK, text, measured=measured)]


def needed_by_rank(neighbours: int, peers: int, streams: int) -> int:
    """By a rank that shares memory with some, and reaches others by TCP."""
    links = peers * streams if peers <= _MAX_DIRECT else 2 * peers * streams
    return _OTHERS + _SPARE + links + _FOR_NEIGHBOUR * neighbours


def needed_by_store(job: JobShape) -> int:
    """By ringrun, which holds the store and what ranks of its host print."""
    output = _PIPES * job.local_size if job.hosts == 1 else _FOR_AGENT * job.hosts
    return _OTHERS + _SPARE + job.size + output


def _largest_job(hard: int, streams: int) -> int:
    """The most ranks, on a host each, of which each may connect to all."""
    by_links = (hard - _OTHERS - _SPARE) // (2 * streams) + 1
    by_store = (hard - _OTHERS - _SPARE) // (1 + _FOR_AGENT)
    return max(1, min(by_links, by_store, _LARGEST_JOB))
