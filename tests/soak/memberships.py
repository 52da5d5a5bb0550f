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
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak.history import Process, WrongError, check
from support.network import run
from support.processes import is_alive
from support.ssh_hosts import SshHosts

SIZE = 3
FAULTS = 4
# More than the 70 s after which a host that was cut off is asked again.
DEADLINE_S = 180.0
SECOND_THING = 0.2
RANK = Path(__file__).with_name("counting_steps.py")
# Undoes what was done to a job.
Mend = Callable[[], None]


class Job:
    """A job, and what was seen of it.

    Args:
        hosts: Its hosts.
        directory: For its files.
    """

    def __init__(self, hosts: SshHosts, directory: Path) -> None:
        self.hosts = hosts
        self.directory = directory
        self.processes: dict[int, Process] = {}
        where = ",".join(f"{name}:1" for name in hosts.host_names)
        options = [
            *("-np", str(SIZE), "-H", where, "--min-np", "1", "--max-np", str(SIZE)),
            *("--blacklist-cooldown-range", "0", "0", "--ssh-args", hosts.ssh_args),
            *("--card", str(directory / "card"), "--heirs", "--grace-period", "2"),
            *(sys.executable, str(RANK), str(directory)),
        ]
        with (directory / "output").open("wb") as output:
            self._ringrun = subprocess.Popen(
                hosts.on(0, sys.executable, "-m", "ring_keras.launch", *options),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def find(self, host: int, agent: bool) -> list[int]:
        """The processes of an agent there, or of the launcher."""
        agents = set(self.hosts.find(host, "ring_keras.launch.agent"))
        # The launcher's ssh names the agent, too.
        found = filter(is_python, self.hosts.find(host, "ring_keras.launch"))
        return [pid for pid in found if (pid in agents) == agent]

    def rank_on(self, host: int) -> list[int]:
        """The rank there."""
        left = set(self.hosts.leftovers(host))
        return [one.pid for one in self.living() if one.pid in left]

    def living(self) -> list[Process]:
        """The ranks that have not ended."""
        return [one for one in self.processes.values() if is_alive(one.pid)]

    def is_over(self) -> bool:
        """Whether none of its processes is left."""
        return not any(self.hosts.leftovers(host) for host in range(SIZE))

    def is_full(self, since: float) -> bool:
        """Whether all living ranks have done some steps together since then."""
        living = [one for one in self.living() if len(one.steps) > 5]
        last = [one.steps[-5] for one in living]
        return (
            len(last) == SIZE
            and len({step.generation for step in last}) == 1
            and all(step.size == SIZE and step.at > since for step in last)
        )

    def read(self) -> None:
        """Takes what ranks have written since."""
        for path in self.directory.glob("steps.*"):
            number = int(path.suffix[1:])
            if number not in self.processes:
                self.processes[number] = Process(path)
        for process in self.processes.values():
            process.read()

    def await_full(self, since: float) -> bool:
        """Until all are there again; False: the job has ended.

        Raises:
            WrongError: If they do not come.
        """
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self.read()
            if self.is_full(since):
                return True
            if self.is_over():
                return False
            time.sleep(0.1)
        raise WrongError(f"not all ranks were there again within {DEADLINE_S:g} s")

    def stop(self) -> None:
        """Ends it, after which every rank has done as many steps as the others.

        Raises:
            WrongError: If it does not end, or otherwise.
        """
        living = {one.number for one in self.living()}
        (self.directory / "stop").touch()
        self.await_end()
        ends = {path.name: path.read_text() for path in self.directory.glob("end.*")}
        expected = {f"end.{number}" for number in living}
        if set(ends) != expected or len(set(ends.values())) != 1:
            raise WrongError(f"{sorted(expected)} should end alike: {ends}")

    def await_end(self) -> None:
        """Until no process is left."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.is_over():
            if time.monotonic() > deadline:
                raise WrongError("the job does not end")
            time.sleep(0.1)
        self._ringrun.wait()
        self.read()

    def close(self) -> None:
        """Leaves nothing behind."""
        self.hosts.clean()
        self._ringrun.wait()


def is_python(pid: int) -> bool:
    """Whether that process is one of Python."""
    with contextlib.suppress(OSError):
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    return False


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
