"""Which rank a process is, by the variables of whoever started it."""

from __future__ import annotations

import pytest

from ring_keras.config import ConfigError, ScheduledRank, scheduled_rank

# As srun, prterun and hydra_pmi_proxy set them; jsrun's and torchrun's as documented.
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "9",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "1,2(x2),1",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_SRUN_COMM_PORT": "38025",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-vm-10667@1",
    "PMIX_RANK": "1",
}
MPICH = {
    "PMI_RANK": "2",
    "PMI_SIZE": "3",
    "PMI_FD": "11",
    "PMI_HOSTNAME": "vm",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "1",
}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
JSRUN = {
    "JSM_NAMESPACE_RANK": "4",
    "JSM_NAMESPACE_SIZE": "6",
    "JSM_NAMESPACE_LOCAL_RANK": "0",
    "JSM_NAMESPACE_LOCAL_SIZE": "6",
    "LSB_JOBID": "99",
    # Its MPI's.
    "OMPI_COMM_WORLD_RANK": "4",
    "OMPI_COMM_WORLD_SIZE": "6",
}


def found(environment: dict[str, str]) -> ScheduledRank:
    scheduled = scheduled_rank(environment)
    assert scheduled is not None
    return scheduled


def numbers(scheduled: ScheduledRank) -> tuple[int | None, ...]:
    return scheduled.rank, scheduled.size, scheduled.local_rank, scheduled.local_size


def test_started_by_hand() -> None:
    assert scheduled_rank({"HOME": "/root"}) is None


def test_slurm() -> None:
    scheduled = found(SLURM)

    assert numbers(scheduled) == (3, 6, 0, 2)
    assert (scheduled.starter, scheduled.reach) == ("Slurm", "10.0.0.1")
    assert not scheduled.one_host


@pytest.mark.parametrize(
    "other",
    [
        {"SLURM_JOB_ID": "8"},
        {"SLURM_STEP_ID": "1"},
        {"SLURM_RESTART_COUNT": "1"},
        {"SLURM_SRUN_COMM_PORT": "38026"},
    ],
)
def test_another_step_of_slurm_is_another_job(other: dict[str, str]) -> None:
    assert found(SLURM | other).job != found(SLURM).job
    assert found(SLURM | {"SLURM_PROCID": "0"}).job == found(SLURM).job


def test_a_batch_script_is_no_rank() -> None:
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    assert scheduled_rank(script) is None
    # Nor is the shell of `salloc`, where that is a step.
    interactive = str(0xFFFFFFFA)
    assert scheduled_rank(SLURM | {"SLURM_STEP_ID": interactive}) is None


def test_open_mpi() -> None:
    scheduled = found(OPEN_MPI)

    assert numbers(scheduled) == (1, 2, 1, 2)
    assert scheduled.one_host
    assert scheduled.job and scheduled.pmi_fd is None


def test_mpich_and_intel_mpi() -> None:
    scheduled = found(MPICH)
    assert numbers(scheduled) == (2, 3, 0, 1)
    assert (scheduled.starter, scheduled.pmi_fd, scheduled.reach) == ("MPICH", 11, "vm")
    assert not scheduled.one_host

    assert found(MPICH | {"I_MPI_MPIRUN": "mpirun"}).starter == "Intel MPI"


def test_torchrun() -> None:
    scheduled = found(TORCHRUN)
    assert numbers(scheduled) == (5, 8, 1, 4)
    assert scheduled.starter == "torchrun"
    # After a failure it starts all ranks again.
    assert found(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}).job != scheduled.job


def test_its_variables_by_hand() -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    by_hand = {name: TORCHRUN[name] for name in names}
    assert numbers(found(by_hand)) == (5, 8, None, None)
    # Scripts set some of them for their own use.
    for name in names:
        some = {other: text for other, text in by_hand.items() if other != name}
        assert scheduled_rank(some) is None


def test_jsrun() -> None:
    scheduled = found(JSRUN)
    assert numbers(scheduled) == (4, 6, 0, 6)
    assert (scheduled.starter, scheduled.one_host) == ("jsrun", True)


@pytest.mark.parametrize("inner", [OPEN_MPI, MPICH, JSRUN, TORCHRUN])
def test_the_innermost_is_believed(inner: dict[str, str]) -> None:
    # mpirun has srun start a helper on each node, which starts the ranks.
    assert found(SLURM | inner).rank == found(inner).rank


def test_slurms_own_pmi_is_slurm() -> None:
    pmi = {"PMI_RANK": "3", "PMI_SIZE": "6", "PMI_FD": "5"}
    assert found(SLURM | pmi).starter == "Slurm"


@pytest.mark.parametrize("outer", [SLURM, OPEN_MPI, MPICH, JSRUN, TORCHRUN])
def test_a_launcher_of_ours_says_more(outer: dict[str, str]) -> None:
    assert scheduled_rank(outer | {"RING_KERAS_RANK": "0"}) is None
    # So does a user who wants ranks that know nothing of each other.
    assert scheduled_rank(outer | {"RING_KERAS_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK"),
        (MPICH | {"PMI_SIZE": "-1"}, "PMI_SIZE"),
        ({"JSM_NAMESPACE_RANK": "1"}, "JSM_NAMESPACE_SIZE"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": ""}, "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_what_makes_no_sense_is_no_reason_to_train_alone(
    environment: dict[str, str], name: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"{name} must be an integer.*one of several"
    ):
        scheduled_rank(environment)


def test_a_rank_beyond_the_size() -> None:
    with pytest.raises(ConfigError, match="rank 2 of 2, which cannot be"):
        scheduled_rank(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "2"})
    with pytest.raises(ConfigError, match="SLURM_NODEID must be less than 4"):
        scheduled_rank(SLURM | {"SLURM_NODEID": "4"})


def test_a_number_of_too_many_digits_is_refused() -> None:
    with pytest.raises(ConfigError, match="SLURM_PROCID must be an integer"):
        scheduled_rank({**SLURM, "SLURM_PROCID": "9" * 5000})
