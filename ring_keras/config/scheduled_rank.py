"""Which rank of a job this process is, as a scheduler or an MPI has told it.

A program that starts processes tells each in variables of its own which one it is.
Variables are inherited, so a process may see those of several programs that were
started one by the other, and of some that started none of its siblings: the table
below is in the order in which the innermost is believed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ring_keras.config.errors import ConfigError
from ring_keras.config.slurm import expand_counts

__all__ = ["ScheduledRank", "is_slurm_task", "scheduled_rank"]

Environment = Mapping[str, str]

# Slurm's numbers for what are no steps of the user's: the batch script's own, that
# of an interactive shell, and so on.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class ScheduledRank:
    """One process's place among those that were started together.

    Attributes:
        rank: Its number, from 0.
        size: How many there are.
        local_rank: Its number among those on its host; None: it was not told.
        local_size: How many there are on its host; None: it was not told.
        starter: Who started it and says all this, for messages.
        job: The same text in all of them and in no other job's; empty: there is none.
        pmi_fd: Where the starter answers in PMI-1's words, if it does.
        reach: Host name or address by which other hosts are reached, if told.
    """

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    starter: str
    job: str
    pmi_fd: int | None = None
    reach: str | None = None

    @property
    def one_host(self) -> bool:
        """Whether all of them are known to be on one host."""
        return self.local_size == self.size


def scheduled_rank(environment: Environment | None = None) -> ScheduledRank | None:
    """Finds out who started this process, and as which rank.

    Args:
        environment: Where to look; this process's environment by default.

    Returns:
        None if a launcher of ring_keras says which rank this is, if
        `RING_KERAS_SIZE=1` says that it is alone, and if nobody says anything.

    Raises:
        ConfigError: If a variable of whoever started it makes no sense.
    """
    if environment is None:
        environment = os.environ
    if any(environment.get(f"RING_KERAS_{name}") for name in ("RANK", "SIZE")):
        return None
    for find in _STARTERS:
        scheduled = find(environment)
        if scheduled is not None:
            return _checked(scheduled)
    return None


def _torchrun(environment: Environment) -> ScheduledRank | None:
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    return _torch_variables(environment, "torchrun")


def _torch_like(environment: Environment) -> ScheduledRank | None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in environment for name in names):
        return None
    return _torch_variables(environment, "who set RANK and WORLD_SIZE")


def _torch_variables(environment: Environment, starter: str) -> ScheduledRank:
    job = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    return ScheduledRank(
        rank=_integer(environment, "RANK"),
        size=_integer(environment, "WORLD_SIZE"),
        local_rank=_integer_or_none(environment, "LOCAL_RANK"),
        local_size=_integer_or_none(environment, "LOCAL_WORLD_SIZE"),
        starter=starter,
        job=_joined(environment, *job, "TORCHELASTIC_RESTART_COUNT"),
        reach=environment.get("MASTER_ADDR"),
    )


def _jsrun(environment: Environment) -> ScheduledRank | None:
    if "JSM_NAMESPACE_RANK" not in environment:
        return None
    return ScheduledRank(
        rank=_integer(environment, "JSM_NAMESPACE_RANK"),
        size=_integer(environment, "JSM_NAMESPACE_SIZE"),
        local_rank=_integer_or_none(environment, "JSM_NAMESPACE_LOCAL_RANK"),
        local_size=_integer_or_none(environment, "JSM_NAMESPACE_LOCAL_SIZE"),
        starter="jsrun",
        job=_joined(environment, "LSB_JOBID", "PMIX_NAMESPACE", "JSM_NAMESPACE_ID"),
    )


def _open_mpi(environment: Environment) -> ScheduledRank | None:
    if "OMPI_COMM_WORLD_RANK" not in environment:
        return None
    return ScheduledRank(
        rank=_integer(environment, "OMPI_COMM_WORLD_RANK"),
        size=_integer(environment, "OMPI_COMM_WORLD_SIZE"),
        local_rank=_integer_or_none(environment, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=_integer_or_none(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        starter="Open MPI",
        # Version 5 has the first; before, the number alone may come again.
        job=_joined(
            environment,
            "PMIX_NAMESPACE",
            "OMPI_MCA_ess_base_jobid",
            "OMPI_MCA_orte_hnp_uri",
        ),
    )


def _hydra(environment: Environment) -> ScheduledRank | None:
    # Slurm's own PMI sets the first two as well.
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
    if not all(name in environment for name in names):
        return None
    intel = "I_MPI_HYDRA_UUID" in environment or "I_MPI_MPIRUN" in environment
    return ScheduledRank(
        rank=_integer(environment, "PMI_RANK"),
        size=_integer(environment, "PMI_SIZE"),
        local_rank=_integer(environment, "MPI_LOCALRANKID"),
        local_size=_integer_or_none(environment, "MPI_LOCALNRANKS"),
        starter="Intel MPI" if intel else "MPICH",
        job=environment.get("I_MPI_HYDRA_UUID", ""),
        pmi_fd=_integer_or_none(environment, "PMI_FD"),
        reach=environment.get("PMI_HOSTNAME"),
    )


def is_slurm_task(environment: Environment) -> bool:
    """Whether srun has started this process."""
    # A batch script has SLURM_PROCID too, but is no task of a step.
    if "SLURM_PROCID" not in environment or "SLURM_STEP_ID" not in environment:
        return False
    return _integer(environment, "SLURM_STEP_ID") < _FIRST_SPECIAL_STEP


def _slurm(environment: Environment) -> ScheduledRank | None:
    if not is_slurm_task(environment):
        return None
    return ScheduledRank(
        rank=_integer(environment, "SLURM_PROCID"),
        # Not SLURM_NTASKS, which is what the job asked for.
        size=_integer(environment, "SLURM_STEP_NUM_TASKS"),
        local_rank=_integer_or_none(environment, "SLURM_LOCALID"),
        local_size=_tasks_of_this_node(environment),
        starter="Slurm",
        job=_joined(
            environment,
            "SLURM_CLUSTER_NAME",
            "SLURM_JOB_ID",
            "SLURM_STEP_ID",
            # Other numbers in the same job, requeued, and in another one that has
            # got its number once the numbers began anew.
            "SLURM_RESTART_COUNT",
            "SLURM_SRUN_COMM_PORT",
        ),
        reach=environment.get("SLURM_LAUNCH_NODE_IPADDR"),
    )


def _tasks_of_this_node(environment: Environment) -> int | None:
    name = "SLURM_STEP_TASKS_PER_NODE"
    if name not in environment or "SLURM_NODEID" not in environment:
        return None
    counts = expand_counts(name, environment[name])
    node = _integer(environment, "SLURM_NODEID")
    if node >= len(counts):
        raise ConfigError(
            "[RK123] "
            f"SLURM_NODEID must be less than {len(counts)}, of which {name} tells the "
            f"tasks. Received: SLURM_NODEID={node}, {name}={environment[name]!r}"
        )
    return counts[node]


_STARTERS: tuple[Callable[[Environment], ScheduledRank | None], ...] = (
    # Is itself often started by one of those below.
    _torchrun,
    # Sets Open MPI's variables too.
    _jsrun,
    # mpirun may start a helper on each node by srun, and that one the ranks.
    _open_mpi,
    _hydra,
    _slurm,
    # By hand, or by Kubernetes' training operators.
    _torch_like,
)


def _checked(scheduled: ScheduledRank) -> ScheduledRank:
    if scheduled.size < 1 or not 0 <= scheduled.rank < scheduled.size:
        raise ConfigError(
            "[RK123] "
            f"{scheduled.starter} says that this process is rank {scheduled.rank} of "
            f"{scheduled.size}, which cannot be. Start the script with ringrun, or set "
            "RING_KERAS_SIZE=1 to run it alone."
        )
    return scheduled


def _integer(environment: Environment, name: str) -> int:
    text = environment.get(name, "").strip()
    # More digits are a mistake, too; Python reads no more than 4,300.
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ConfigError(
            "[RK123] "
            f"{name} must be an integer of at least 0, as this process was started "
            f"as one of several. Received: {name}={text!r}. Start the script with "
            "ringrun, or set RING_KERAS_SIZE=1 to run it alone."
        )
    return int(text)


def _integer_or_none(environment: Environment, name: str) -> int | None:
    return _integer(environment, name) if name in environment else None


def _joined(environment: Environment, *names: str) -> str:
    """What those that are set hold, as one text; empty if none is."""
    found = [f"{name}={environment[name]}" for name in names if environment.get(name)]
    return "\n".join(found)
