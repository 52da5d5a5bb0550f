"""Jobs on three hosts under faults drawn at random, whose histories are checked.

`python tests/soak/memberships.py [JOBS] [AT_ONCE] [ONLY] [SEED]`, or `make
soak-memberships`. It needs root, as the hosts are network namespaces: each of AT_ONCE
jobs has hosts of its own. Each job has a rank on each host, a card and heirs. Some
times in a row something is killed, stopped or cut off: a rank, the launcher, an agent,
a host, or the way between two hosts; now and then a second thing meanwhile. Afterwards
all ranks must be there again. Only a job to which two things have happened at once may
have ended. In any case its history must be right (`history.py`). With ONLY "launcher",
"agent" or "rank" nothing happens but that one of them is killed. Ends with code 1 if
something was wrong, and keeps that job's files.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak.history import WrongError, check
from soak.hosted_job import SIZE, Job
from support.network import run
from support.ssh_hosts import SshHosts

FAULTS = 4
SECOND_THING = 0.2
# Undoes what was done to a job.
Mend = Callable[[], None]


def send(pids: list[int], number: signal.Signals) -> None:
    """A signal, to those that there are."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def pause(pids: list[int]) -> Mend:
    """Stops processes, as a debugger or a machine that moves does."""
    send(pids, signal.SIGSTOP)
    return lambda: send(pids, signal.SIGCONT)


def cut_off(job: Job, host: int) -> Mend:
    """A host, from all others."""
    job.hosts.set_link(host, "down")
    return lambda: job.hosts.set_link(host, "up")


def part(job: Job, one: int, other: int) -> Mend:
    """Two hosts, from each other."""
    commands = job.hosts.cutting(one, other)
    for command in commands:
        run(*command)

    def join() -> None:
        for command in commands:
            run(*command[:-1], "off")

    return join


def nothing() -> None:
    """What was killed is not to be mended."""


def begin(job: Job, chance: random.Random, only: str) -> tuple[str, Mend]:
    """Does something to the job; what, and what mends it."""
    host, other = chance.sample(range(SIZE), 2)
    what = chance.choice(
        ["killed", "stopped"] if chance.random() < 0.6 else ["cut off", "parted"]
    )
    if what == "cut off" and not only:
        return f"host {what}", cut_off(job, host)
    if what == "parted" and not only:
        return f"hosts {what}", part(job, host, other)
    whom = only or chance.choice(["launcher", "agent", "rank"])
    if whom == "launcher":
        pids = [pid for at in range(SIZE) for pid in job.find(at, agent=False)]
    elif whom == "agent":
        pids = job.find(host, agent=True)
    else:
        pids = job.rank_on(host)
    if what == "stopped" and not only:
        return f"{whom} {what}", pause(pids)
    send(pids, signal.SIGKILL)
    return f"{whom} killed", nothing


def strike(
    job: Job, chance: random.Random, only: str, done: Counter[str]
) -> float | None:
    """Does one thing or two, and waits until all ranks are there again.

    Returns:
        The seconds until then since the last of it was mended; None: the job is over.

    Raises:
        WrongError: If they do not come, or have a history that is wrong.
    """
    alone = only != "" or chance.random() >= SECOND_THING
    mends = []
    told = []
    for _ in range(1 if alone else 2):
        what, mend = begin(job, chance, only)
        mends.append(mend)
        told.append(what)
        time.sleep(chance.choice([0.1, 1.0, 3.0, 8.0, 20.0]) * chance.random())
    for mend in reversed(mends):
        mend()
    since = time.monotonic()
    done.update(told)
    goes_on = job.await_full(since)
    check(list(job.processes.values()))
    seconds = time.monotonic() - since
    came = f"{seconds:.1f} s" if goes_on else "over"
    print(f"{' + '.join(told)}: {came}", flush=True)
    if not goes_on and alone:
        raise WrongError(f"the job has ended because of one thing: {told[0]}")
    return seconds if goes_on else None


def one_job(
    hosts: SshHosts,
    directory: Path,
    chance: random.Random,
    only: str,
    done: Counter[str],
) -> list[float]:
    """A job, and all that is done to it; the seconds of `strike`."""
    job = Job(hosts, directory)
    seconds: list[float] = []
    try:
        if not job.await_full(0.0):
            raise WrongError("it did not begin")
        for _ in range(FAULTS):
            took = strike(job, chance, only, done)
            if took is None:
                done["jobs that ended because of two things"] += 1
                return seconds
            seconds.append(took)
        job.stop()
        check(list(job.processes.values()))
    finally:
        job.close()
    return seconds


def some_jobs(
    top: Path, jobs: int, only: str, seed: int
) -> tuple[Counter[str], list[float], int]:
    """So many, one after the other, on hosts of their own; what, seconds, wrong ones.

    In a process of its own, by whose number its hosts are named.
    """
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    seconds: list[float] = []
    wrong = 0
    (top / "hosts").mkdir(parents=True)
    with SshHosts(SIZE, top / "hosts") as hosts:
        for number in range(jobs):
            directory = top / f"job{number}"
            directory.mkdir()
            try:
                seconds += one_job(hosts, directory, chance, only, done)
            except WrongError as error:
                wrong += 1
                print(f"WRONG: {error}; see {directory}", flush=True)
            else:
                shutil.rmtree(directory)
    return done, seconds, wrong


def main(jobs: int, at_once: int, only: str, seed: int) -> int:
    """Runs so many jobs, and says what it saw."""
    top = Path(tempfile.mkdtemp(prefix="ring-keras-memberships-"))
    print(f"seed {seed}, {top}", flush=True)
    done: Counter[str] = Counter()
    seconds: list[float] = []
    wrong = 0
    with ProcessPoolExecutor(at_once) as pool:
        parts = [
            pool.submit(
                *(some_jobs, top / f"hosts{part}"),
                *(len(range(part, jobs, at_once)), only, seed + part),
            )
            for part in range(at_once)
        ]
        for part in parts:
            its_done, its_seconds, its_wrong = part.result()
            done += its_done
            seconds += its_seconds
            wrong += its_wrong
    for what, count in sorted(done.items()):
        print(f"{count:5} {what}")
    if seconds:
        print(
            f"all ranks there again: median {statistics.median(seconds):.1f} s, "
            f"most {max(seconds):.1f} s"
        )
    print(f"{jobs} jobs, {wrong} of them wrong")
    if not wrong:
        shutil.rmtree(top)
    return min(wrong, 1)


if __name__ == "__main__":
    words = sys.argv[1:]
    defaults = ["50", "1", "", str(random.randrange(10**6))]
    count, parallel, victim, number = words + defaults[len(words) :]
    sys.exit(main(int(count), int(parallel), victim, int(number)))
