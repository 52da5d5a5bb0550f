"""The hosts and slots that a scheduler has given this job, from the environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ring_keras.config import expand_counts, expand_nodes
from ring_keras.launch.hosts import (
    Host,
    HostsError,
    checked_host,
    merge,
    read_hostfile,
)

__all__ = ["Allocation", "allocation"]

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Allocation:
    """What a scheduler lets a job use.

    Attributes:
        scheduler: Its name, for messages.
        source: Which of its variables says so.
        job: How it calls the job.
        hosts: In its order, each with as many slots as ranks are meant for it.
        starter: Its words that start a command on a host, after which come the host
            and the command; empty: it has none that passes input on.
        cores: How many of each host's processors are the job's; empty: unknown.
        gpus: How many GPUs of each host are, as the scheduler says; empty: unknown.
    """

    scheduler: str
    source: str
    job: str
    hosts: Sequence[Host]
    starter: Sequence[str] = ()
    cores: Sequence[int] = ()
    gpus: str = ""

    def describe(self) -> str:
        """For a line that tells the user."""
        each = [f"{host.name}:{host.slots}" for host in self.hosts]
        if self.cores:
            pairs = zip(each, self.cores, strict=True)
            each = [f"{host} ({cores} cores)" for host, cores in pairs]
        gpus = f"; GPUs of each: {self.gpus}" if self.gpus else ""
        return (
            f"{self.scheduler} job {self.job} has slots ({self.source}): "
            f"{', '.join(each)}{gpus}"
        )


def allocation(environment: Environment) -> Allocation | None:
    """Reads what the scheduler says; None if this is not within any job of one.

    Raises:
        ConfigError: If a variable of Slurm's makes no sense.
        HostsError: If another's, or a file that it names, does not.
    """
    for scheduler, (source, job), read in _SCHEDULERS:
        if environment.get(source):
            hosts = read(environment, source)
            own = Allocation(scheduler, source, environment.get(job, ""), hosts)
            return _completed(own, environment)
    return None


def _completed(own: Allocation, environment: Environment) -> Allocation:
    """With what the scheduler can do, and what else it says."""
    own = dataclasses.replace(own, starter=_STARTERS.get(own.scheduler, ()))
    name = "SLURM_JOB_CPUS_PER_NODE"
    if own.scheduler != "Slurm" or name not in environment:
        return own
    cores = expand_counts(name, environment[name])
    if len(cores) != len(own.hosts):
        cores = []
    gpus = environment.get("SLURM_GPUS_PER_NODE", "")
    return dataclasses.replace(own, cores=cores, gpus=gpus)


def _slurm(environment: Environment, source: str) -> list[Host]:
    names = expand_nodes(source, environment[source])
    counts_name = "SLURM_TASKS_PER_NODE"
    if counts_name not in environment:
        return [checked_host(name, "1") for name in names]
    counts = expand_counts(counts_name, environment[counts_name])
    if len(counts) != len(names) or 0 in counts:
        raise HostsError(
            f"Slurm gives {len(names)} nodes ({source}={environment[source]!r}) and "
            f"tasks for {len(counts)} ({counts_name}={environment[counts_name]!r}): "
            "expected at least one task on each. Name the hosts with -H"
        )
    pairs = zip(names, counts, strict=True)
    return [checked_host(name, str(count)) for name, count in pairs]


def _words(environment: Environment, source: str) -> list[Host]:
    """A name and its slots by turns, in the variable: `a 4 b 4`."""
    words = environment[source].split()
    names, counts = words[::2], words[1::2]
    if len(names) != len(counts):
        raise HostsError(f"{source} must be names and numbers by turns, not {words}")
    return merge(map(checked_host, names, counts))


def _one_slot_a_line(environment: Environment, source: str) -> list[Host]:
    return read_hostfile(Path(environment[source]))


def _sge(environment: Environment, source: str) -> list[Host]:
    """`host slots queue processors` on each line of a file."""
    path = Path(environment[source])
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HostsError(f"{source}={path}: {error}") from None
    rows = [line.split() for line in lines if line.strip()]
    if not rows or min(map(len, rows)) < 2:
        raise HostsError(f"{source}={path}: must have a host and its slots a line")
    return merge(checked_host(row[0], row[1]) for row in rows)


_Reader = Callable[[Environment, str], Sequence[Host]]

# The agent may use all that the job has on its host, beside other steps.
_SRUN = ("srun", "--nodes=1", "--ntasks=1", "--overlap", "--unbuffered")
_STARTERS: Mapping[str, Sequence[str]] = {
    "Slurm": (*_SRUN, "--cpu-bind=none", "--nodelist"),
    "LSF": ("blaunch",),
    "Grid Engine": ("qrsh", "-inherit"),
}

_SCHEDULERS: tuple[tuple[str, tuple[str, str], _Reader], ...] = (
    ("Slurm", ("SLURM_JOB_NODELIST", "SLURM_JOB_ID"), _slurm),
    ("LSF", ("LSB_DJOB_HOSTFILE", "LSB_JOBID"), _one_slot_a_line),
    ("LSF", ("LSB_MCPU_HOSTS", "LSB_JOBID"), _words),
    ("PBS", ("PBS_NODEFILE", "PBS_JOBID"), _one_slot_a_line),
    ("Grid Engine", ("PE_HOSTFILE", "JOB_ID"), _sge),
)
