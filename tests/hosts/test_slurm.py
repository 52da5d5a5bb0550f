"""srun, sbatch, salloc and scancel of a real Slurm, on two hosts."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from support.mpi import MPIS, ROOT_DIR, documented_scripts
from support.processes import wait_until
from support.slurm import Slurm
from support.slurm_jobs import Jobs

pytestmark = pytest.mark.hosts

JOIN = """
import os, sys, time
from pathlib import Path
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
from ring_keras.schedulers import store_options
sys.modules["tensorflow"] = None
config = Config.from_environment()
_native.init(**config.init_options() | store_options(config))
rank, size, *place = _native.topology()
def total(name):
    return _native.allreduce(np.ones(1, np.float32), name=name)[0]
"""
REPORT = """
sys.stdout.write(f"rank {rank} of {size}, {place}: {total('x'):g}\\n")
_native.shutdown("done")
"""
# Until another one does something that it never does.
HANG = """
total("x")
Path(sys.argv[1], f"rank{rank}").touch()
time.sleep(60) if rank == 0 else total("y")
"""
# Until a warning has come to all.
WARNED = """
import signal
got = []
signal.signal(signal.SIGUSR1, lambda number, _frame: got.append(number))
Path(sys.argv[1], f"rank{rank}").touch()
deadline = time.monotonic() + 60
while not got:
    assert time.monotonic() < deadline
    time.sleep(0.02)
Path(sys.argv[1], f"warned{rank}").touch()
total("x")
_native.shutdown("done")
"""
LONG = timedelta(seconds=10)
MPICH = MPIS[1]
TWO_HOSTS = ["--nodes=2", "--ntasks=3", "--overcommit"]
THREE_RANKS = [
    "rank 0 of 3, [0, 2, 0, 2]: 3",
    "rank 1 of 3, [1, 2, 0, 1]: 3",
    "rank 2 of 3, [0, 1, 1, 2]: 3",
]


@pytest.fixture
def jobs(slurm_of_all: Slurm, tmp_path: Path) -> Iterator[Jobs]:
    yield Jobs(slurm_of_all, tmp_path, JOIN)
    slurm_of_all.cancel_all()


def test_srun_on_one_host(jobs: Jobs) -> None:
    one_host = ["--nodes=1", "--ntasks=2"]
    finished = jobs.run("srun", *one_host, *jobs.script(REPORT))

    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [
        "rank 0 of 2, [0, 2, 0, 1]: 2",
        "rank 1 of 2, [1, 2, 0, 1]: 2",
    ]
    jobs.wait_until_none_is_left()


def test_srun_on_hosts_with_different_numbers_of_tasks(jobs: Jobs) -> None:
    finished = jobs.run("srun", *TWO_HOSTS, *jobs.script(REPORT))

    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == THREE_RANKS
    jobs.wait_until_none_is_left()


def test_steps_of_one_job_are_jobs_of_their_own(jobs: Jobs) -> None:
    step = " ".join(["srun", "--nodes=1", "--ntasks=1", "--exact"])
    python = " ".join(jobs.script(REPORT))
    printed = jobs.batch(f"{step} {python} &\n{step} {python} &\nwait\n", "--ntasks=2")

    # Each is alone: it was not told of another.
    assert printed.splitlines() == ["rank 0 of 1, [0, 1, 0, 1]: 1"] * 2


def test_ringrun_takes_the_hosts_of_its_job(jobs: Jobs) -> None:
    python = " ".join(jobs.script(REPORT))
    ringrun = f"{sys.executable} -m ring_keras.launch"
    printed = jobs.batch(f"{ringrun} {python}\n", *TWO_HOSTS)

    lines = printed.splitlines()
    assert sorted(line[4:] for line in lines if line.startswith("[")) == THREE_RANKS
    assert "has slots (SLURM_JOB_NODELIST): node0:2 (" in printed
    jobs.wait_until_none_is_left()


def test_a_warning_reaches_ringruns_ranks(jobs: Jobs) -> None:
    """To the steps, as without `B:`, and to the script's own process."""
    python = " ".join(jobs.script(WARNED))
    ringrun = f"{sys.executable} -m ring_keras.launch"
    job = jobs.submit(f"exec {ringrun} {python}\n", *TWO_HOSTS)
    jobs.wait_for_ranks(3)

    def warned() -> set[str]:
        return {path.name for path in jobs.directory.glob("warned*")}

    jobs.run("scancel", "--signal=USR1", job)
    wait_until(lambda: bool(warned()), "the rank of the other host is warned")
    assert warned() == {"warned2"}
    jobs.run("scancel", "--signal=USR1", "--batch", job)
    wait_until(lambda: len(warned()) == 3, "all are warned")

    jobs.wait_until_none_is_left()
    assert "RK8" not in (jobs.directory / "output").read_text()


def test_salloc_and_the_plan(jobs: Jobs) -> None:
    ringrun = [sys.executable, "-m", "ring_keras.launch"]
    finished = jobs.run("salloc", *TWO_HOSTS, *ringrun, "--dry-run", "train")

    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("node0: ")
    assert lines[3].startswith("node1: srun --nodes=1 --ntasks=1 ")
    assert "RING_KERAS_RANK=2" in lines[4]
    assert lines[4].endswith(" train")


def test_ringrun_is_not_to_be_started_by_srun(jobs: Jobs) -> None:
    ringrun = [sys.executable, "-m", "ring_keras.launch"]
    finished = jobs.run("srun", *TWO_HOSTS, *ringrun, "true")

    assert finished.returncode != 0
    assert "Slurm started 3 of this ringrun" in finished.stderr


@pytest.mark.parametrize("launcher", ["srun", "ringrun"])
def test_scancel_leaves_nothing(jobs: Jobs, launcher: str) -> None:
    python = " ".join(jobs.script(HANG))
    start = {"srun": "srun", "ringrun": f"{sys.executable} -m ring_keras.launch"}
    job = jobs.submit(f"{start[launcher]} {python}\n", *TWO_HOSTS)
    jobs.wait_for_ranks(3)
    assert jobs.processes()

    jobs.run("scancel", job)

    jobs.wait_until_none_is_left()


def test_the_scripts_of_the_documentation(jobs: Jobs) -> None:
    (jobs.directory / "train.py").write_text(JOIN + REPORT)
    scripts = [text for text in documented_scripts() if "#SBATCH" in text]
    jobs.env["PATH"] = f"{Path(sys.executable).parent}:{jobs.slurm.path}"
    where = f"--chdir={jobs.directory}"

    assert len(scripts) == 2
    for script in scripts:
        printed = jobs.batch(script.partition("\n")[2], where).splitlines()
        # After its rank, where ringrun forwards the line.
        assert sorted(
            line[line.find("rank ") :] for line in printed if "of 4" in line
        ) == [
            f"rank {rank} of 4, [{rank % 2}, 2, {rank // 2}, 2]: 4" for rank in range(4)
        ]


@pytest.mark.parametrize("victim", ["rank0", "rank2", "the store"])
def test_killing_any_process_leaves_none(jobs: Jobs, victim: str) -> None:
    # Without --kill-on-bad-exit, so that Slurm does not do it.
    script = """
total("x")
unfinished = Path(sys.argv[1], f"pid{rank}")
unfinished.write_text(str(os.getpid()))
unfinished.rename(Path(sys.argv[1], f"rank{rank}"))
try:
    while True:
        total("y")
except RuntimeError as error:
    Path(sys.argv[1], f"told{rank}").write_text(str(error))
    raise
"""
    jobs.submit(f"srun {' '.join(jobs.script(script))}\n", *TWO_HOSTS)
    jobs.wait_for_ranks(3)
    if victim == "the store":
        # It takes its card away then, which it cannot do any more when it is killed.
        wait_until(lambda: not jobs.cards(), "the store knows that all have joined")
        (pid,) = (
            pid
            for pid in jobs.processes()
            if b"store_process.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
    else:
        pid = int((jobs.directory / victim).read_text())

    os.kill(pid, signal.SIGKILL)

    jobs.wait_until_none_is_left()
    # Not what srun has forwarded: it may end before it has read all of it.
    told = {path.name: path.read_text() for path in jobs.directory.glob("told*")}
    assert sorted(told) == [f"told{n}" for n in range(3) if victim != f"rank{n}"]
    assert all(text.startswith("PeerLostError: ") for text in told.values()), told


def test_a_requeued_job_begins_anew(jobs: Jobs) -> None:
    # Killed with its first life, the store leaves its card behind.
    text = """
if "SLURM_RESTART_COUNT" in os.environ:
    sys.stdout.write(f"again {total('x'):g}\\n")
    _native.shutdown("done")
else:
    Path(sys.argv[1], f"rank{rank}").touch()
    time.sleep(60) if rank == 0 else total("x")
"""
    python = " ".join(jobs.script(text))
    job = jobs.submit(f"srun {python}\n", "--requeue", "--nodes=2", "--ntasks=2")
    jobs.wait_for_ranks(2)

    assert jobs.run("scontrol", "requeue", job).returncode == 0
    output = jobs.directory / "output"

    def ran_again() -> bool:
        # It waits for two minutes, unless it is told that it need not. Slurm puts the
        # time off once more when the last process of the first life has ended. A second
        # has to pass: what starts in the one in which the first life was ended is
        # killed ("Job credential revoked").
        waits = re.search(
            r"Reason=BeginTime.* StartTime=(\d\S+)", jobs.state(job), re.S
        )
        if waits and datetime.fromisoformat(waits[1]) - datetime.now() > LONG:
            jobs.run("scontrol", "update", f"jobid={job}", "StartTime=now+2")
        return output.read_text().count("again 2") == 2

    wait_until(ran_again, "it ran again", 60)
    jobs.wait_until_none_is_left()


# As in a training, with sums that are exact, so that it does not matter which ranks
# of a host add theirs first.
TRAIN = """
import hashlib
data = np.random.default_rng(rank)
weights = np.zeros(5000, np.float32)
for step in range(20):
    for bucket in (slice(0, 3), slice(3, 900), slice(900, 5000)):
        gradient = data.integers(-99, 99, weights[bucket].shape).astype(np.float32)
        weights[bucket] -= _native.allreduce(gradient, "sum", f"b{bucket.start}") / size
sys.stdout.write(f"weights {hashlib.sha256(weights.tobytes()).hexdigest()}\\n")
_native.shutdown("done")
"""


def test_every_way_of_starting_trains_alike(jobs: Jobs) -> None:
    python = " ".join(jobs.script(TRAIN))
    ringrun = f"{sys.executable} -m ring_keras.launch"
    mpiexec = ""
    if MPICH.bin_dir is not None:
        # It has srun start a helper on each node, and that one the ranks.
        mpiexec = f"{MPICH.bin_dir}/mpiexec.hydra -bootstrap slurm -iface eth0 {python}"
    four = ["--nodes=2", "--ntasks-per-node=2"]

    ways = [
        f"srun {python}",
        f"{ringrun} {python}",
        # All on the script's own host, as ever.
        f"{ringrun} -H $(hostname):4 {python}",
        mpiexec,
    ]
    printed = jobs.batch("\n".join(ways), *four)

    weights = [line[-72:] for line in printed.splitlines() if "weights " in line]
    assert len(weights) == 4 * sum(map(bool, ways)), printed
    assert len(set(weights)) == 1
    jobs.wait_until_none_is_left()


@pytest.mark.slow
def test_the_digits_are_learned(jobs: Jobs) -> None:
    example = ROOT_DIR / "examples/keras_digits.py"
    four = ["--nodes=2", "--ntasks-per-node=2"]
    finished = jobs.slurm.run(
        *("srun", *four, sys.executable, str(example), "--epochs=3"),
        f"--output={jobs.directory}/digits.keras",
        env=jobs.env | {"RING_KERAS_INIT_TIMEOUT_S": "120"},
        timeout_s=170,
    )

    assert finished.returncode == 0, finished.stderr
    # It has compared with one process itself.
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)% on 4 rank\(s\)", finished.stdout)
    assert float(accuracy) > 90
    jobs.wait_until_none_is_left()
