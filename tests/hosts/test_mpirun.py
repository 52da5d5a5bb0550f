"""`mpirun python train.py` with real MPIs, on one host and on several."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.job import light_environment
from support.mpi import MPIS, ROOT_DIR, Mpi, documented_scripts
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts

JOIN = """
import os, signal, sys, time
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
from ring_keras.schedulers import store_options
sys.modules["tensorflow"] = None
config = Config.from_environment()
def join():
    _native.init(**config.init_options() | store_options(config))
def total(name):
    return _native.allreduce(np.ones(1, np.float32), name=name)[0]
join()
rank, size, *place = _native.topology()
"""
# One write a line: the lines of ranks are not to be mixed.
REPORT = """
first = total("x")
_native.shutdown("to join once more")
join()
second = total("y")
_native.shutdown("done")
sys.stdout.write(f"rank {rank} of {size}, {place}: {first:g} {second:g}\\n")
"""


@pytest.fixture(params=MPIS, ids=lambda mpi: mpi.folder)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    found: Mpi = request.param
    if found.bin_dir is None:
        pytest.skip(found.missing)
    return found


def run(
    mpi: Mpi, command: Sequence[str], script: str, directory: Path
) -> subprocess.CompletedProcess[str]:
    """Runs `script` on the ranks that `command` starts."""
    file = directory / "script.py"
    file.write_text(JOIN + script)
    environment = light_environment() | mpi.environment()
    environment["RING_KERAS_INIT_TIMEOUT_S"] = "40"
    return subprocess.run(
        [*command, sys.executable, str(file)],
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )


def on_one_host(mpi: Mpi, size: int) -> list[str]:
    assert mpi.bin_dir is not None
    return [str(mpi.bin_dir / "mpirun"), *mpi.on_one_host, "-np", str(size)]


def test_its_ranks_are_one_job(mpi: Mpi, tmp_path: Path) -> None:
    finished = run(mpi, on_one_host(mpi, 3), REPORT, tmp_path)

    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [
        f"rank {rank} of 3, [{rank}, 3, 0, 1]: 3 3" for rank in range(3)
    ]


def test_the_script_of_the_documentation(mpi: Mpi, tmp_path: Path) -> None:
    (script,) = [text for text in documented_scripts() if "mpirun" in text]
    python = Path(sys.executable).parent
    job = tmp_path / "job.sh"
    job.write_text(script)
    (tmp_path / "train.py").write_text(JOIN + REPORT)
    # As many ranks as this machine has cores are fine, for some that is one.
    environment = mpi.environment() | {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"
    }
    environment["PATH"] = f"{python}:{environment['PATH']}"
    command = ["env", *(f"{name}={text}" for name, text in environment.items())]

    finished = subprocess.run(
        [*command, "bash", str(job)],
        env=light_environment(),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )

    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [
        f"rank {rank} of 2, [{rank}, 2, 0, 1]: 2 2" for rank in range(2)
    ]


def test_an_elastic_loop_is_told_what_would_go_on(mpi: Mpi, tmp_path: Path) -> None:
    script = """
del sys.modules["tensorflow"]
_native.shutdown("the loop joins by itself")
import ring_keras as ring
ring.init()
ring.elastic.run(lambda state: None)(ring.elastic.ObjectState(step=0))
"""
    finished = run(mpi, on_one_host(mpi, 2), script, tmp_path)

    assert finished.returncode == 0, finished.stderr
    said = f"all ranks end when one is lost: {mpi.name} started them. `ringrun --min-np"
    assert finished.stderr.count(said) == 1, finished.stderr


def test_a_rank_may_end_before_the_others(mpi: Mpi, tmp_path: Path) -> None:
    # A process manager might take the first end, or the rest, for a failure.
    script = """
total("x")
_native.shutdown("done")
if rank == 1:
    time.sleep(1)
    sys.stdout.write("saved\\n")
"""
    finished = run(mpi, on_one_host(mpi, 2), script, tmp_path)

    assert (finished.returncode, finished.stdout) == (0, "saved\n"), finished.stderr


def test_a_killed_rank_ends_the_job(mpi: Mpi, tmp_path: Path) -> None:
    script = """
total("x")
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
total("y")
"""
    finished = run(mpi, on_one_host(mpi, 2), script, tmp_path)

    assert finished.returncode != 0


def test_hosts(mpi: Mpi, hosts: SshHosts, tmp_path: Path) -> None:
    ssh = tmp_path / "ssh.sh"
    ssh.write_text(f'#!/bin/sh\nexec ssh {hosts.ssh_args} "$@"\n')
    ssh.chmod(0o755)
    shared = tmp_path / "shared"
    command = [f"RING_KERAS_RENDEZVOUS_DIR={shared}"]
    command += mpi.across(hosts.addresses[:2], str(ssh))

    finished = run(mpi, hosts.on(0, "env", *command), REPORT, tmp_path)

    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [
        f"rank {rank} of 2, [0, 1, {rank}, 2]: 2 2" for rank in range(2)
    ]
    hosts.wait_until_empty()
    assert [path for path in shared.rglob("*") if not path.is_dir()] == []


def test_a_rank_0_that_cannot_serve_tells_all(tmp_path: Path) -> None:
    mpi = MPIS[1]
    if mpi.bin_dir is None:
        pytest.skip(f"there is no {mpi.name}")
    # Nobody's address: it is for examples.
    command = ["env", "RING_KERAS_BIND_ADDRESS=192.0.2.7", *on_one_host(mpi, 2)]

    finished = run(mpi, command, "", tmp_path)

    assert finished.returncode != 0
    assert "rank 0 cannot start the job's store: the process that" in finished.stderr


def test_torchrun(tmp_path: Path) -> None:
    peers = Path(os.environ.get("RING_KERAS_PEERS", ROOT_DIR / "build/peers"))
    torchrun = peers / "torch/bin/torchrun"
    if not torchrun.exists():
        pytest.skip("there is no torch: benchmarks/make_environments.sh torch")
    file = tmp_path / "script.py"
    file.write_text(JOIN + REPORT)
    command = [str(torchrun), "--standalone", "--nproc-per-node=2", "--no-python"]

    finished = subprocess.run(
        [*command, sys.executable, str(file)],
        env=light_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [
        f"rank {rank} of 2, [{rank}, 2, 0, 1]: 2 2" for rank in range(2)
    ]
