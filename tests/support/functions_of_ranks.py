"""What ranks that an engine has started run in tests. Needs no TensorFlow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np

from ring_keras import _native
from support import engine_only, processes
from support.engine_only import join
from support.processes import wait_until


def travel_by(cloudpickle: ModuleType) -> None:
    """These functions travel as they are: workers do not have the tests' modules."""
    for module in (sys.modules[__name__], engine_only, processes):
        cloudpickle.register_pickle_by_value(module)


def told_sum(factor: int) -> tuple[int, int, float, list[str]]:
    """Rank, size, a sum of all ranks', and what of the job the environment tells."""
    rank, size = join()
    total = _native.allreduce(np.array([factor * (rank + 1.0)]), "sum", "total")
    token_file = Path(os.environ["RING_KERAS_TOKEN_FILE"])
    assert os.major(token_file.stat().st_dev) == 0, "the secret is on a disk"
    token = token_file.read_text()
    told = [name for name, value in os.environ.items() if token in value]
    return rank, size, float(total[0]), told


def order_of_a_set() -> list[str]:
    """In which a set of strings is met there; it depends on their hashes."""
    join()
    return list({f"word {i}" for i in range(100)})


def fails_on_rank_1(how: str) -> None:
    """`how`: raises, exits, or dies."""
    rank, _ = join()
    _native.barrier("all are here")
    if rank == 1 and how == "raises":
        raise ValueError("no such thing\nat all")
    if rank == 1 and how == "exits":
        os._exit(3)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _native.barrier("never all")


def forks_and_dies(directory: str) -> None:
    """What it forks has a session of its own, stays, and writes its pid."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        threading.Event().wait()
    Path(directory, str(pid)).touch()
    wait_until(lambda: os.getsid(pid) == pid, "it has left")
    os.kill(os.getpid(), signal.SIGKILL)


def worker_pid() -> int:
    """Of the engine's worker, whose child's child this process is."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def writes_its_pid_and_waits(directory: str) -> None:
    """And starts a process of its own, in another session; writes that one's, too."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(command, start_new_session=True)
    for pid in (os.getpid(), child.pid):
        Path(directory, str(pid)).touch()
    threading.Event().wait()
