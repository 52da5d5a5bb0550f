"""A real training in a real Slurm, to which something happens each minute.

`python tests/soak/slurm_hour.py [MINUTES] [SEED]`, or `make soak-slurm`. It needs root,
Slurm, and moto. Three hosts (network namespaces) have a job, and a fourth one has S3.
The job is an elastic `fit` (`slurm_training.py`) with `ring.callbacks.Checkpoint`. Each
minute a rank or an agent is killed, or `ringrun`; a node is taken down; a link is cut;
or another job preempts this one, which Slurm requeues. In every other minute the link
of a host is slow. Ends with code 1 if a promise was broken: a step that was committed
is lost, an example is trained on twice, a process is left, the job does not go on, or
it ends with a loss that unfailed runs do not have. Then it keeps the files.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak.history import Process, WrongError, check
from soak.memberships import is_python
from support.job import light_environment
from support.object_stores import KINDS
from support.processes import is_alive, wait_until
from support.slurm import Slurm
from support.slurm_jobs import REQUEUES, Jobs
from support.ssh_hosts import SshHosts

SIZE = 3
DEADLINE_S = 300.0
# With a step, that makes epochs of ten seconds.
PAUSE_S = 0.3
EPOCH_S = 10
RATES = ("1mbit", "4mbit", "16mbit")
TRAINING = Path(__file__).with_name("slurm_training.py")
CHECKPOINTS = "s3://soak/checkpoints"
# The record of a part: run, step, whose it is, and of how many.
RECORD = re.compile(r"run-(\d+)-step-(\d+)\.(\S+)\.\d+-of-(\d+)\.json")
LIST = f"print(*store.find({CHECKPOINTS!r}), sep='\\n')"
SCRIPT = """\
{python} -m ring_keras.launch -np {size} --min-np 1 --max-np {size} \
--blacklist-cooldown-range 0 5 --grace-period 3 \
{python} {training} {directory}/run.${{SLURM_RESTART_COUNT:-0}} 1000000 {pause} 1 \
{checkpoints}
"""


class Training:
    """The job, and what was seen of it.

    Args:
        slurm: Runs it.
        directory: For its files.
        address: Of S3.
    """

    def __init__(self, slurm: Slurm, directory: Path, address: str) -> None:
        self.slurm, self.hosts, self.directory = slurm, slurm.hosts, directory
        self.jobs = Jobs(slurm, directory)
        kind = KINDS["s3"]
        self.jobs.env |= {**kind.variables, kind.address_in: address}
        self.jobs.env["AWS_MAX_ATTEMPTS"] = "10"
        self.processes: dict[tuple[int, int], Process] = {}
        self.run = 0
        self._on_store("store.mkdir('soak')")
        words = {"python": sys.executable, "training": TRAINING, "size": SIZE}
        words |= {"directory": directory, "pause": PAUSE_S, "checkpoints": CHECKPOINTS}
        self.number = self.jobs.submit(
            SCRIPT.format(**words) + REQUEUES,
            *("--nodelist=node0,node1,node2", "--nodes=3", "--ntasks-per-node=2"),
            *("--no-kill", "--requeue", "--open-mode=append"),
        )

    def read(self) -> None:
        """Takes what ranks have written since."""
        for path in self.directory.glob("run.*/steps.*"):
            key = int(path.parent.suffix[1:]), int(path.suffix[1:])
            if key not in self.processes:
                self.processes[key] = Process(path)
            self.run = max(self.run, key[0])
        for process in self.processes.values():
            process.read()

    def of_run(self, run: int) -> list[Process]:
        """Its processes."""
        return [one for (its, _), one in self.processes.items() if its == run]

    def living(self) -> list[Process]:
        """The ranks that have not ended."""
        return [one for one in self.of_run(self.run) if is_alive(one.pid)]

    def generation(self) -> int:
        """Of its newest step."""
        return max(one.steps[-1].generation for one in self.living() if one.steps)

    def await_step(self, since: float, size: int, run: int, generation: int) -> float:
        """Until so many ranks have done a step together, not before all of those.

        Returns:
            When that was.

        Raises:
            WrongError: If it takes too long.
        """
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self.read()
            of_a_later_run = self.run > run
            after = [
                [
                    step.at
                    for step in one.steps
                    if step.at > since
                    and step.size >= size
                    and (of_a_later_run or step.generation >= generation)
                ]
                for one in self.living()
            ]
            begun = [steps[0] for steps in after if steps]
            if self.run >= run and len(begun) >= size:
                return max(begun)
            time.sleep(0.1)
        raise WrongError(f"no step of {size} ranks within {DEADLINE_S:g} s")

    def newest_checkpoint(self) -> int:
        """The steps of the newest of which all parts are there; 0: there is none."""
        parts = Counter(RECORD.findall(self._on_store(LIST)))
        whole = [name for name, count in parts.items() if count == int(name[-1])]
        return max(
            ((int(run), int(steps)) for run, steps, *_ in whole), default=(0, 0)
        )[1]

    def await_requeued(self) -> int:
        """Until nothing of the job is left; the step of its newest checkpoint."""
        wait_until(lambda: not self.jobs.processes(), "the job's end", DEADLINE_S)
        return self.newest_checkpoint()

    def others_with_ranks(self) -> list[int]:
        """Hosts beside that of `ringrun`."""
        ranks = {one.pid for one in self.living()}
        return [host for host in (1, 2) if ranks & set(self.hosts.leftovers(host))]

    def on_host(self, host: int, text: str) -> list[int]:
        """The processes of Python there whose command has that."""
        found = self.hosts.find(host, text)
        return list(filter(is_python, found))

    def _on_store(self, code: str) -> str:
        """What some Python prints that has the store."""
        code = f"import fsspec; store = fsspec.filesystem('s3'); {code}"
        done = subprocess.run(
            self.hosts.on(SIZE, sys.executable, "-c", code),
            env=light_environment() | self.jobs.env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class Change(enum.Enum):
    """What must come of something."""

    RANKS = "other ranks, in the same run of the job"
    RUN = "another run of the job"
    PERHAPS = "other ranks, or none"


def kill_rank(job: Training, chance: random.Random) -> Change:
    """Any, also the first one."""
    os.kill(chance.choice(job.living()).pid, signal.SIGKILL)
    return Change.RANKS


def kill_agent(job: Training, chance: random.Random) -> Change:
    """Of one of the other hosts that have ranks; else a rank."""
    hosts = job.others_with_ranks()
    if not hosts:
        return kill_rank(job, chance)
    agents = job.on_host(chance.choice(hosts), "ring_keras.launch.agent")
    os.kill(agents[-1], signal.SIGKILL)  # The first one watches it.
    return Change.RANKS


def take_node_down(job: Training, chance: random.Random) -> Change:
    """One of the others: the job has lost it until it is requeued."""
    hosts = job.others_with_ranks()
    if not hosts:
        return kill_rank(job, chance)
    name = f"node{chance.choice(hosts)}"
    job.jobs.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=soak")
    time.sleep(10)
    job.slurm.take_back(name)
    return Change.RANKS


def cut_link(job: Training, chance: random.Random) -> Change:
    """Of one of the other hosts, for up to 12 seconds."""
    host = chance.choice([1, 2])
    job.hosts.set_link(host, "down")
    time.sleep(chance.uniform(1, 12))
    job.hosts.set_link(host, "up")
    return Change.PERHAPS


def preempt(job: Training, chance: random.Random) -> Change:
    """By a job that wants all of its nodes for a moment."""
    wants = ["--nodelist=node0,node1,node2", "--nodes=3", "--exclusive"]
    where = ["--partition=urgent", "--output=/dev/null", "--wrap=sleep 2"]
    done = job.jobs.run("sbatch", *wants, *where)
    assert done.returncode == 0, done.stderr
    return Change.RUN


def kill_launcher(job: Training, chance: random.Random) -> Change:
    """`ringrun` itself, after which the script has Slurm requeue the job."""
    os.kill(job.on_host(0, "ring_keras.launch")[0], signal.SIGKILL)
    return Change.RUN


THINGS: dict[str, Callable[[Training, random.Random], Change]] = {
    "a rank killed": kill_rank,
    "an agent killed": kill_agent,
    "a node down": take_node_down,
    "a link cut": cut_link,
    "preempted, requeued": preempt,
    "ringrun killed, requeued": kill_launcher,
}
WEIGHTS = (4, 1, 1, 2, 2, 1)


class Seen:
    """What happened: for each thing its seconds, and the steps that were done again."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[float, float, int]]] = {}
        self.problems: list[str] = []

    def table(self) -> str:
        """For the page on reliability."""
        lines = [
            "| what | times | until a step: median, most | until all ranks train: "
            "median, most | steps done again: median, most |",
            "|---|---|---|---|---|",
        ]
        for what, rows in sorted(self.rows.items()):
            first, full, again = zip(*rows, strict=True)
            lines.append(
                f"| {what} | {len(rows)} | {statistics.median(first):.1f} s, "
                f"{max(first):.1f} s | {statistics.median(full):.1f} s, "
                f"{max(full):.1f} s | {statistics.median(again):g}, {max(again)} |"
            )
        return "\n".join(lines)


def strike(job: Training, chance: random.Random, seen: Seen) -> None:
    """Does one thing, and waits until all ranks train again."""
    (what,) = chance.choices(list(THINGS), WEIGHTS)
    job.read()
    before, generation, since = job.run, job.generation(), time.monotonic()
    print(f"{time.strftime('%H:%M:%S')} {what}", end="", flush=True)
    change = THINGS[what](job, chance)
    again = 0
    run = before + (change is Change.RUN)
    generation = 0 if change is Change.RUN else generation + (change is Change.RANKS)
    if change is Change.RUN:
        checkpoint = job.await_requeued()
        job.read()
        last = max(one.steps[-1].number for one in job.of_run(before) if one.steps)
        first = job.await_step(since, 1, run, generation)
        began = min(one.steps[0].number for one in job.of_run(run) if one.steps)
        if began != checkpoint + 1:
            raise WrongError(
                f"the checkpoint is {checkpoint}, and step {began} is next"
            )
        again = last - checkpoint
    else:
        if change is Change.PERHAPS:  # It is noticed within five seconds, and two.
            time.sleep(8)
            since = time.monotonic()
        first = job.await_step(since, 1, run, generation)
    full = job.await_step(since, SIZE, run, generation)
    for number in range(before, job.run + 1):
        check(job.of_run(number))
    row = first - since, full - since, again
    seen.rows.setdefault(what, []).append(row)
    print(f": {row[0]:.1f} s, {row[1]:.1f} s, {row[2]} steps again", flush=True)


def train_for(job: Training, minutes: float, chance: random.Random, seen: Seen) -> None:
    """Something each minute, for so long."""
    job.await_step(0.0, SIZE, 0, 0)
    begun = time.monotonic()
    number = 0
    while time.monotonic() < begun + 60 * minutes:
        number += 1
        slow = chance.randrange(SIZE)
        if number % 2 == 0:
            job.hosts.set_rate(slow, chance.choice(RATES))
        try:
            strike(job, chance, seen)
        except Exception as error:
            seen.problems.append(str(error) or repr(error))
            print(f"\nWRONG: {error!r}", flush=True)
            run = job.run
            job.jobs.run("scontrol", "requeue", job.number)
            job.await_step(time.monotonic(), SIZE, run + 1, 0)
        job.hosts.set_rate(slow, None)
        time.sleep(max(0.0, begun + 60 * number - time.monotonic()))


def finish(job: Training, seen: Seen) -> dict[int, float]:
    """Ends the job, and checks it; its loss after each epoch."""
    ended = {one.number for one in job.living()}
    directory = job.directory / f"run.{job.run}"
    for run in range(job.run + 1):
        (job.directory / f"run.{run}" / "stop").touch()
    job.jobs.wait_until_none_is_left()
    ends = {path.name: path.read_text() for path in directory.glob("end.*")}
    if set(ends) != {f"end.{one}" for one in ended} or len(set(ends.values())) != 1:
        seen.problems.append(f"{sorted(ended)} should end alike: {ends}")
        return curve_of(job.directory)
    epochs, most, left_out, _ = next(iter(ends.values())).split()
    if int(most) > int(epochs):
        seen.problems.append(f"an example was trained on {most} times in {epochs}")
    if int(left_out) > int(epochs) * (SIZE - 1):
        seen.problems.append(f"{left_out} examples were left out in {epochs} epochs")
    print(f"{epochs} epochs; of their examples none twice, {left_out} left out")
    return curve_of(job.directory)


def curve_of(directory: Path) -> dict[int, float]:
    """The loss in validation after each epoch, as the last run that has it says."""
    losses: dict[int, float] = {}
    runs = sorted(directory.glob("run.*"), key=lambda path: int(path.suffix[1:]))
    for run in runs:
        for path in sorted(run.glob("curve.*")):
            for line in path.read_text().splitlines():
                said = json.loads(line)
                losses[said["epoch"]] = said["val_sparse_categorical_crossentropy"]
    return losses


def unfailed(directory: Path, epochs: int) -> list[dict[int, float]]:
    """The losses of runs of 2 and 3 ranks from several seeds, without faults."""
    curves = []
    for size, seed in ((3, 1), (2, 1), (3, 2)):
        own = directory / f"unfailed.{size}.{seed}"
        own.mkdir()
        run = str(own / "run.0")
        command = [
            *("nice", sys.executable, "-m", "ring_keras.launch", "-np", str(size)),
            *("--min-np", str(size), sys.executable, str(TRAINING)),
            *(run, str(epochs), "0", str(seed), "-"),
        ]
        with (own / "output").open("wb") as output:
            subprocess.run(
                command, env=light_environment(), stdout=output, stderr=output
            ).check_returncode()
        curves.append(curve_of(own))
    return curves


def compare(
    losses: dict[int, float], others: list[dict[int, float]], seen: Seen
) -> None:
    """The curve beside those of unfailed runs."""
    last = max(losses)
    print("| epoch | loss | of unfailed runs |\n|---|---|---|")
    for epoch in sorted({last * tenth // 10 for tenth in range(11)}):
        theirs = [curve[epoch] for curve in others if epoch in curve]
        if epoch in losses and theirs:
            print(
                f"| {epoch + 1} | {losses[epoch]:.4f} | "
                f"{min(theirs):.4f} to {max(theirs):.4f} |"
            )
    theirs = [curve[last] for curve in others if last in curve]
    if not theirs or not min(theirs) <= losses[last] <= max(theirs):
        seen.problems.append(f"the last loss is {losses[last]}, of others {theirs}")


def main(minutes: float, seed: int) -> int:
    """Runs it for so long, and says what was seen."""
    chance = random.Random(seed)
    top = Path(tempfile.mkdtemp(prefix="ring-keras-slurm-"))
    print(f"seed {seed}, {top}", flush=True)
    seen = Seen()
    for name in ("hosts", "slurm", "job"):
        (top / name).mkdir()
    top.chmod(0o755)  # munged wants that.
    with contextlib.ExitStack() as stack:
        others: Future[list[dict[int, float]]] = stack.enter_context(
            ThreadPoolExecutor(1)
        ).submit(unfailed, top, int(60 * minutes / EPOCH_S))
        hosts = stack.enter_context(SshHosts(SIZE + 1, top / "hosts"))
        slurm = Slurm(hosts, top / "slurm")
        stack.callback(slurm.close)
        slurm.start()
        at = hosts.on(SIZE), hosts.addresses[SIZE]
        address, _ = stack.enter_context(KINDS["s3"].served(*at))
        job = Training(slurm, top / "job", address)
        try:
            train_for(job, minutes, chance, seen)
            losses = finish(job, seen)
            compare(losses, others.result(), seen)
        except (WrongError, AssertionError) as error:
            seen.problems.append(str(error))
    print(seen.table() if seen.rows else "nothing was done")
    for problem in seen.problems:
        print(f"WRONG: {problem}; see {top}")
    if not seen.problems:
        shutil.rmtree(top)
    return min(1, len(seen.problems))


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(
        main(
            float(words[0]) if words else 60.0,
            int(words[1]) if len(words) > 1 else random.randrange(10**6),
        )
    )
