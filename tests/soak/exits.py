"""Starts jobs that leave in every way, and counts those that do not end well.

`python tests/soak/exits.py [JOBS] [AT_ONCE]`, or `make soak-exit`. Ends with code 1 if
there was any. Most ranks are forked from a process that has TensorFlow imported, those
of every fifth job are Pythons of their own. The C++ stacks of a rank that hangs (gdb,
if there is one) and what it printed stay in a folder that is named at the end.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TESTS_DIR = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS_DIR))

from soak.leaving import BY_SIGNAL, HOWS  # noqa: E402
from support.fork_server import ForkedProcess, ForkServer  # noqa: E402
from support.job import Job, light_environment  # noqa: E402

DEADLINE_S = 120.0
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


FRESH_ONE_IN = 5


@dataclasses.dataclass
class Rank:
    """A process, and its exit code once it has one."""

    process: subprocess.Popen[bytes] | ForkedProcess
    returncode: int | None = None

    def __post_init__(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        self.returncode = self.process.wait()


@dataclasses.dataclass
class Started:
    """A job under way."""

    title: str
    expected: set[int]
    job: Job
    ranks: list[Rank]
    since: float


def start(
    size: int, threads: int, how: str, output: Path, server: ForkServer | None
) -> Started:
    """Starts the ranks of one job; forked from `server` if there is one."""
    pools = {
        "TF_NUM_INTEROP_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
    }
    job = Job(size, env=pools)
    ranks = []
    for rank in range(size):
        environment = job.environment(rank)
        with (output / f"{rank}").open("wb") as file:
            ranks.append(
                Rank(
                    subprocess.Popen(
                        [sys.executable, str(TESTS_DIR / "soak" / "leaving.py"), how],
                        env=environment,
                        stdout=file,
                        stderr=file,
                        start_new_session=True,
                    )
                    if server is None
                    else server.start(
                        [how], environment, [file.fileno()] * 3, module="soak.leaving"
                    )
                )
            )
    title = f"{size} ranks, {threads} threads, {how}"
    if server is None:
        title += ", a Python of its own"
    expected = {HOWS[how]}
    if size > 1 and how in BY_SIGNAL:
        expected.add(1)
    return Started(title, expected, job, ranks, time.monotonic())


def faults_of(started: Started, output: Path) -> list[str] | None:
    """What was wrong with a job; None while it goes on."""
    running = [rank for rank in started.ranks if rank.returncode is None]
    if running and time.monotonic() - started.since < DEADLINE_S:
        return None
    faults = []
    for rank in running:
        faults.append("hang")
        pid = rank.process.pid
        write_stacks(pid, output / f"stacks.{pid}")
    for rank in started.ranks:
        if rank in running or rank.returncode is None:
            pass
        elif -rank.returncode in CRASHES:
            faults.append("crash")
        elif rank.returncode not in started.expected:
            faults.append(f"exit code {rank.returncode}")
        try:
            os.killpg(rank.process.pid, signal.SIGKILL)
            if rank not in running:
                faults.append("process left")
        except ProcessLookupError:
            pass
    started.job.close()
    return faults


def write_stacks(pid: int, path: Path) -> None:
    """Every thread's, of C++ and then of Python."""
    if shutil.which("gdb"):
        command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace"]
        with path.open("wb") as file, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, stdout=file, stderr=file, timeout=300, check=False)
    os.kill(pid, signal.SIGABRT)  # Faulthandler prints them where the rank prints.
    time.sleep(1)


def main(jobs: int, at_once: int) -> int:
    """Runs the jobs, and says what it counted."""
    kinds = itertools.cycle(itertools.product(HOWS, (1, 2), (1, 2)))
    directory = Path(tempfile.mkdtemp(prefix="ring-keras-soak-"))
    counts: collections.Counter[str] = collections.Counter()
    under_way: list[tuple[Started, Path]] = []
    server = ForkServer(light_environment)
    done = 0
    for number in range(jobs):
        how, size, threads = next(kinds)
        output = directory / f"{number}"
        output.mkdir()
        fresh = number % FRESH_ONE_IN == 0
        started = start(size, threads, how, output, None if fresh else server)
        under_way.append((started, output))
        last = number == jobs - 1
        while len(under_way) >= (1 if last else at_once):
            for started, folder in list(under_way):
                faults = faults_of(started, folder)
                if faults is None:
                    continue
                under_way.remove((started, folder))
                done += 1
                counts.update(faults)
                if faults:
                    print(f"{started.title}: {', '.join(faults)}: {folder}", flush=True)
                else:
                    shutil.rmtree(folder)
                if done % 20 == 0:
                    print(
                        f"{done} of {jobs} jobs, {sum(counts.values())} faults",
                        flush=True,
                    )
            time.sleep(0.05)
    server.close()
    print(
        f"{done} jobs: {counts['hang']} hangs, {counts['crash']} crashes, "
        f"{counts['process left']} processes left, "
        f"{sum(counts.values())} faults in all. {directory}",
        flush=True,
    )
    return int(bool(counts))


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(numbers + [1000, 2][len(numbers) :])))
