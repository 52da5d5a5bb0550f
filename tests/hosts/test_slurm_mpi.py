"""Ranks that srun starts and that reach each other's hosts by an MPI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mpi import MPIS, Mpi
from support.slurm import Slurm
from support.slurm_jobs import Jobs

pytestmark = pytest.mark.hosts

JOIN = """
import os, sys
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
from ring_keras.schedulers import store_options
sys.modules["tensorflow"] = None
config = Config.from_environment()
_native.init(**config.init_options() | store_options(config))
rank, size, *place = _native.topology()
total = _native.allreduce(np.ones(300_000, np.float32), "sum", "x")
assert (total == size).all()
reached = [_native.transport_to(other) for other in range(size)]
_native.shutdown("done")
sys.stdout.write(f"rank {rank} of {size}: {total[0]:g} by {' '.join(reached)}\\n")
"""
TWO_HOSTS = ["--nodes=2", "--ntasks=3", "--overcommit"]


@pytest.fixture(params=MPIS, ids=lambda mpi: mpi.folder)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    found: Mpi = request.param
    if found.library is None:
        pytest.skip(found.missing)
    return found


@pytest.fixture
def jobs(slurm_of_all: Slurm, tmp_path: Path) -> Iterator[Jobs]:
    yield Jobs(slurm_of_all, tmp_path, JOIN)
    slurm_of_all.cancel_all()


def test_srun_starts_ranks_that_use_mpi(jobs: Jobs, mpi: Mpi) -> None:
    if mpi.missing_for_srun:
        pytest.skip(
            f"there is no {mpi.missing_for_srun}; Debian's are in libpmi2-0 and "
            "libpmix-dev"
        )
    jobs.env |= mpi.between_hosts() | mpi.under_srun()
    finished = jobs.run("srun", mpi.srun_option, *TWO_HOSTS, *jobs.script(""))

    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [
        "rank 0 of 3: 3 by self shm mpi",
        "rank 1 of 3: 3 by shm self mpi",
        "rank 2 of 3: 3 by mpi mpi self",
    ]
    jobs.wait_until_none_is_left()
