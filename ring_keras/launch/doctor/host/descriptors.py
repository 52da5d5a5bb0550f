"""Whether a process may open as many descriptors as ranks and the store need."""

from __future__ import annotations

import resource

from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.fixes import raise_limit
from ring_keras.launch.doctor.host.settings import config
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]

# As tf_ops/common/descriptors.cc and tf_ops/rendezvous/limits.h have them.
_OTHERS = 256
_SPARE = 64
# Up to so many ranks on other hosts, all are connected from the start
# (tf_ops/runtime/init_options.h); beyond, when a collective needs it, which for
# allreduces is at most so many (docs/design/0028-links-on-demand.md).
_MAX_DIRECT = 24
_MOST_LINKS = 32
# A segment and a doorbell of each rank that shares memory.
_FOR_NEIGHBOUR = 2
_PIPES = 2
# Of the hosts' agents, ringrun holds input, output and error.
_FOR_AGENT = 3
_LARGEST_JOB = 4096


def check(job: JobShape) -> list[Finding]:
    """The hard limit, up to which ring_keras raises its own."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return [Finding("open files", State.OK, "no limit")]
    by_tcp = config().transport == "tcp"
    peers = job.size - 1 if by_tcp else job.remote_size
    neighbours = 0 if by_tcp else job.local_size - 1
    streams = config().tcp_streams
    who = "each rank"
    needed = _needed_by_rank(neighbours, peers, streams)
    if job.holds_store and _needed_by_store(job) > needed:
        needed, who = _needed_by_store(job), "ringrun, with the job's store,"
    wanted = max(needed, _wanted_by_rank(neighbours, peers, streams))
    largest = _largest_job(hard, streams)
    measured = {
        "hard_limit": hard,
        "needed": needed,
        "wanted": wanted,
        "largest_size": largest,
    }
    text = f"up to {hard:,}"
    if hard < wanted:
        short = hard < needed
        why = (
            f"{needed:,}, which {who} needs in a job of {job.size:,} ranks"
            if short
            else f"{wanted:,}: alltoall, and some other collectives, connect each rank "
            f"of {job.size:,} to all"
        )
        return [
            Finding(
                "open files",
                State.FAILURE if short else State.WARNING,
                text,
                expected=why,
                fix=raise_limit("nofile", str(2 * wanted), job),
                measured=measured,
            )
        ]
    text += f"; {who} needs {needed:,}; enough for {largest:,} ranks"
    if largest < _LARGEST_JOB:
        text += ", one on each host"
    return [Finding("open files", State.OK, text, measured=measured)]


def _needed_by_rank(neighbours: int, peers: int, streams: int) -> int:
    """By a rank that shares memory with some, and reaches others by TCP."""
    links = min(peers, _MOST_LINKS) * streams
    return _OTHERS + _SPARE + links + _FOR_NEIGHBOUR * neighbours


def _wanted_by_rank(neighbours: int, peers: int, streams: int) -> int:
    """By a rank that is connected to all others."""
    links = peers if peers <= _MAX_DIRECT else 2 * peers
    return _OTHERS + _SPARE + links * streams + _FOR_NEIGHBOUR * neighbours


def _needed_by_store(job: JobShape) -> int:
    """By ringrun, which holds the store and what ranks of its host print."""
    output = _PIPES * job.local_size if job.hosts == 1 else _FOR_AGENT * job.hosts
    return _OTHERS + _SPARE + job.size + output


def _largest_job(hard: int, streams: int) -> int:
    """The most ranks, on a host each, of which each may connect to all."""
    by_links = (hard - _OTHERS - _SPARE) // (2 * streams) + 1
    by_store = (hard - _OTHERS - _SPARE) // (1 + _FOR_AGENT)
    return max(1, min(by_links, by_store, _LARGEST_JOB))
