"""MPI between hosts, with the MPIs that are here: ranks that their mpirun starts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support import run_ranks
from support.engine_only import WITHOUT_TENSORFLOW, join
from support.every_collective import every_collective, join_twice
from support.job import light_environment
from support.mpi import MPIS, Mpi
from support.toy_transport import APART

from ring_keras import _native


@pytest.fixture(params=MPIS, ids=lambda mpi: mpi.folder)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    found: Mpi = request.param
    if found.library is None:
        pytest.skip(found.missing)
    return found


def over(mpi: Mpi) -> dict[str, str]:
    return WITHOUT_TENSORFLOW | APART | mpi.between_hosts()


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_collective_goes_over_it(mpi: Mpi, size: int) -> None:
    results = run_ranks(every_collective, size, env=over(mpi))

    for rank, reached in enumerate(results):
        assert reached == ["self" if r == rank else "mpi" for r in range(size)]


def test_ranks_of_one_host_share_memory_beside_it(mpi: Mpi) -> None:
    env = [over(mpi) | {"RING_KERAS_HOST_NAME": f"host{r // 2}"} for r in range(3)]

    results = run_ranks(every_collective, 3, env=env)

    assert results[0] == ["self", "shm", "mpi"]
    assert results[2] == ["mpi", "mpi", "self"]


def test_a_job_may_begin_again(mpi: Mpi) -> None:
    assert run_ranks(join_twice, 2, env=over(mpi)) == [[2, 2]] * 2


def beside_mpi4py(packages: str, first: bool) -> list[float]:
    """Both reduce in turn; mpi4py's messages and ours have the same processes."""
    sys.path.append(packages)
    if first:
        from mpi4py import MPI
    rank, size = join()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert (world.rank, world.size) == (rank, size)
    sums = []
    for turn in range(20):
        data = np.full(1 + 3_000 * turn, rank + turn, np.float32)
        theirs = np.empty_like(data)
        ticket = world.Iallreduce(data, theirs)
        sums.append(float(_native.allreduce(data, "sum", f"ours {turn}")[-1]))
        ticket.Wait()
        sums.append(float(theirs[-1]))
    return sums


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_mpi4py_works_beside_it(mpi: Mpi, first: bool) -> None:
    packages = mpi.python_packages
    if packages is None:
        pytest.skip(f"there is no mpi4py beside {mpi.name}")

    results = run_ranks(beside_mpi4py, 2, env=over(mpi), args=(str(packages), first))

    assert results == [[2 * turn + 1 for turn in range(20) for _ in "ab"]] * 2


def end_early() -> bool:
    rank, _ = join()
    _native.allreduce(np.ones(200_000, np.float32), "sum", "x")
    if rank == 0:
        raise ValueError("this rank has had enough")
    with pytest.raises(RuntimeError, match=r"\[RK202\] rank 0"):
        _native.allreduce(np.ones(200_000, np.float32), "sum", "y")
    return True


def test_a_rank_that_raises_is_named_and_all_end(mpi: Mpi) -> None:
    gone, survivor = run_ranks(end_early, 2, env=over(mpi), check=False)

    assert gone.exception_type == "ValueError", gone.describe()
    assert survivor.ok, survivor.describe()


JOIN = """
import os, signal, sys
number = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
os.environ["RING_KERAS_HOST_NAME"] = f"host{number}"
sys.modules["tensorflow"] = None
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
from ring_keras.schedulers import store_options
config = Config.from_environment()
def join():
    _native.init(**config.init_options() | store_options(config))
def total(count):
    return _native.allreduce(np.ones(count, np.float32), "sum", "x")[0]
join()
rank, size, *_ = _native.topology()
"""


def run_by_mpirun(
    mpi: Mpi,
    script: str,
    directory: Path,
    library: Path | None = None,
    env: Mapping[str, str] | None = None,
    first: str = "",
    size: int = 2,
) -> subprocess.CompletedProcess[str]:
    """Runs `script` on ranks, as a user does, and before they join `first`."""
    assert mpi.bin_dir is not None
    file = directory / "script.py"
    file.write_text("import os, sys\n" + first + JOIN + script)
    variables = {"RING_KERAS_INIT_TIMEOUT_S": "40"} | mpi.between_hosts()
    variables |= env or {}
    if library is not None:
        variables["RING_KERAS_MPI_LIBRARY"] = str(library)
    command = [str(mpi.bin_dir / "mpirun"), *mpi.on_one_host, "-np", str(size)]
    return subprocess.run(
        [*command, sys.executable, str(file)],
        env=light_environment() | mpi.environment() | variables,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_mpirun_starts_a_job(mpi: Mpi, tmp_path: Path) -> None:
    script = """
first = total(300_000)
_native.shutdown("to join once more")
join()
second = total(10)
way = _native.transport_to(1 - rank)
_native.shutdown("done")
sys.stdout.write(f"{rank}: {first:g} {second:g} by {way}\\n")
"""
    finished = run_by_mpirun(mpi, script, tmp_path)

    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [
        f"{rank}: 2 2 by mpi" for rank in range(2)
    ]


def test_the_standard_interface_of_mpi_5(mpi: Mpi, tmp_path: Path) -> None:
    assert mpi.library is not None
    library = mpi.library.with_name("libmpi_abi.so.1")
    if not library.exists():
        pytest.skip(f"{mpi.name} has no {library.name} here")
    script = """
sum = total(300_000)
_native.shutdown("done")
sys.stdout.write(f"{sum:g}\\n")
"""
    finished = run_by_mpirun(mpi, script, tmp_path, library)

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["2", "2"]


def test_what_a_rank_sends_last_arrives_when_it_has_left(
    mpi: Mpi, tmp_path: Path
) -> None:
    # More than MPI is to send unasked: its sender has to answer the receiver, who is
    # stopped until the sender has left.
    script = """
import subprocess, time
from pathlib import Path
def wait_for(look):
    deadline = time.monotonic() + 30
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)
data = np.full(3_000, rank, np.float32)
if rank == 1:
    last = _native.start_broadcast([data], [data], 0, "last")
    Path("announced.part").write_text(str(os.getpid()))
    _native.barrier()
    Path("announced.part").rename("announced")
    wake = f"until [ -e left ]; do sleep 0.05; done; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", wake]):
        os.kill(os.getpid(), signal.SIGSTOP)
        last.wait()
    assert (data == 0).all()
    Path("got").touch()
else:
    _native.barrier()
    wait_for(Path("announced").exists)
    state = Path("/proc", Path("announced").read_text(), "stat")
    wait_for(lambda: state.read_text().rpartition(") ")[2][0] == "T")
    _native.broadcast(data, 0, "last")
    _native.shutdown("done")
    Path("left").touch()
    wait_for(Path("got").exists)
sys.stdout.write("there\\n")
"""
    env = mpi.between_machines() | {"RING_KERAS_HEARTBEAT_TIMEOUT_S": "30"}
    env["OMPI_MCA_btl_tcp_eager_limit"] = env["UCX_RNDV_THRESH"] = "1024"

    finished = run_by_mpirun(mpi, script, tmp_path, env=env)

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("there") == 2, finished.stdout[:3000]


# A rank is killed when the first of the sum has come. Its parent, which mpirun knows,
# lives on, so that it does not end the other one.
KILLED = """
import time
from pathlib import Path
child = os.fork()
if child:
    os.waitpid(child, 0)
    deadline = time.monotonic() + 30
    while not Path("raised").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    sys.exit()
"""
AMID_DATA = """
data = np.ones(12_000_000, np.float32)
_native.barrier()
if rank == 1:
    under_way = _native.start_allreduce([data], [data], "sum", "x")
    deadline = time.monotonic() + 60
    while data[0] == 1:
        assert time.monotonic() < deadline
    os.kill(os.getpid(), signal.SIGKILL)
try:
    _native.allreduce(data, "sum", "x", out=data)
except RuntimeError as error:
    sys.stdout.write(f"raised {error}\\n")
sys.stdout.flush()
Path("raised").touch()
"""


def test_a_rank_that_is_killed_amid_data_is_named(mpi: Mpi, tmp_path: Path) -> None:
    finished = run_by_mpirun(mpi, AMID_DATA, tmp_path, first=KILLED)

    assert "raised PeerLostError" in finished.stdout, finished.stderr[:3000]
    assert "[RK201] rank 1" in finished.stdout, finished.stdout


def test_a_killed_rank_ends_the_job(mpi: Mpi, tmp_path: Path) -> None:
    script = """
total(300_000)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
total(300_000)
"""
    finished = run_by_mpirun(mpi, script, tmp_path)

    assert finished.returncode != 0


# A rank stops when the first of the sum has come, and the other gives up.
STOPPED = """
import subprocess, time
data = np.ones(25_000_000, np.float32)
_native.barrier()
if rank == 1:
    under_way = _native.start_allreduce([data], [data], "sum", "x")
    deadline = time.monotonic() + 60
    while data[0] == 1:
        assert time.monotonic() < deadline
    wake = f"sleep {os.environ['TESTS_WAKE_S']}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", wake]):
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            under_way.wait()
        except RuntimeError as error:
            sys.stdout.write(f"told {error}\\n")
else:
    try:
        _native.allreduce(data, "sum", "x", out=data)
    except RuntimeError as error:
        sys.stdout.write(f"gave up {error}\\n")
sys.stdout.flush()
_native.shutdown("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("wakes", [True, False], ids=["it wakes", "it does not"])
def test_a_rank_that_stops_amid_data(mpi: Mpi, tmp_path: Path, wakes: bool) -> None:
    env = {
        "RING_KERAS_COLLECTIVE_TIMEOUT_S": "4",
        "RING_KERAS_HEARTBEAT_TIMEOUT_S": "60",
        "TESTS_WAKE_S": "8" if wakes else "40",
    }

    finished = run_by_mpirun(mpi, STOPPED, tmp_path, env=env)

    if wakes:
        assert finished.stdout.count("gave up CollectiveTimeoutError") == 1, finished
        assert finished.stdout.count("told ") == 1, finished
    elif mpi.folder == "openmpi" and "gave up CollectiveTimeout" in finished.stdout:
        # It sends by TCP, and the kernel had taken all that was under way.
        assert "MPI still exchanges" not in finished.stderr
    else:
        # What it would take when it wakes is not what this one sent.
        assert finished.returncode != 0
        assert "collective has failed, and MPI still exchanges" in finished.stderr
        assert "This is why it failed: [RK2" in finished.stderr


def test_others_hear_at_once_why_a_rank_gave_up_on_one_that_stopped(
    mpi: Mpi, tmp_path: Path
) -> None:
    # Rank 1 stops amid data. Rank 3, which has none of it in a ring of four, would
    # wait for long.
    script = """
import subprocess, time
data = np.ones(25_000_000, np.float32)
_native.barrier()
if rank == 1:
    under_way = _native.start_allreduce([data], [data], "sum", "x")
    deadline = time.monotonic() + 60
    while data[0] == 1:
        assert time.monotonic() < deadline
    with subprocess.Popen(["sh", "-c", f"sleep 40; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)
else:
    began = time.monotonic()
    try:
        _native.allreduce(data, "sum", "x", out=data)
    except RuntimeError as error:
        passed = time.monotonic() - began
        sys.stdout.write(f"rank {rank} after {passed:.1f} s: {error}\\n")
sys.stdout.flush()
_native.barrier()
"""
    first = """
number = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
os.environ["RING_KERAS_COLLECTIVE_TIMEOUT_S"] = {"0": "4"}.get(number, "60")
"""
    env = {"RING_KERAS_HEARTBEAT_TIMEOUT_S": "60"}

    finished = run_by_mpirun(mpi, script, tmp_path, env=env, first=first, size=4)

    said = re.search(r"rank 3 after ([\d.]+) s: (.*)", finished.stdout)
    assert said is not None, (finished.stdout, finished.stderr[:3000])
    assert float(said[1]) < 12
    assert "[RK206]" in said[2] and "rank 0 gave up after 4 s" in said[2]


def test_ranks_that_are_none_of_mpis_are_refused(mpi: Mpi) -> None:
    env = {name: text for name, text in over(mpi).items() if name != "TESTS_MPI"}

    outcomes = run_ranks(every_collective, 2, env=env, check=False)

    said = [outcome.message for outcome in outcomes]
    assert any(
        "[RK151] rank" in text and "MPI has 1 processes" in text for text in said
    )


def test_without_an_mpi_it_says_what_to_install(tmp_path: Path) -> None:
    env = {"RING_KERAS_TRANSPORT": "mpi"}
    env["RING_KERAS_MPI_LIBRARY"] = str(tmp_path / "libmpi.so.12")

    outcomes = run_ranks(every_collective, 1, env=WITHOUT_TENSORFLOW | env, check=False)

    assert "[RK150] RING_KERAS_TRANSPORT=mpi needs an MPI" in outcomes[0].message
    assert "RING_KERAS_MPI_LIBRARY" in outcomes[0].message
