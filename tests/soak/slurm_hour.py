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
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak.history import WrongError, check
from soak.loss_curves import compare, curve_of, unfailed
from soak.slurm_run import SIZE, Training
from support.object_stores import KINDS
from support.slurm import Slurm
from support.ssh_hosts import SshHosts

# What an epoch takes with three ranks, a little less than it does.
EPOCH_S = 10
RATES = ("1mbit", "4mbit", "16mbit")


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
    """Of one of the other hosts that have ranks."""
    host = chance.choice(job.others_with_ranks())
    agents = job.on_host(host, "ring_keras.launch.agent")
    os.kill(agents[-1], signal.SIGKILL)  # The first one watches it.
    return Change.RANKS


def take_node_down(job: Training, chance: random.Random) -> Change:
    """One of the others: the job has lost it until it is requeued."""
    name = f"node{chance.choice(job.others_with_ranks())}"
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
    job.read()
    (what,) = chance.choices(list(THINGS), WEIGHTS)
    if THINGS[what] in (kill_agent, take_node_down) and not job.others_with_ranks():
        what = "a rank killed"  # The job has lost the other hosts.
    before, generation, since = job.run, job.generation(), time.monotonic()
    print(f"{time.strftime('%H:%M:%S')} {what}", end="", flush=True)
    change = THINGS[what](job, chance)
    again = 0
    run = before + (change is Change.RUN)
    generation = 0 if change is Change.RUN else generation + (change is Change.RANKS)
    if change is Change.RUN:
        checkpoint = job.await_requeued()
        job.read()
        last = max(one.steps[-1].number for one in job.that_trained(0, before))
        first = job.await_step(since, run, generation)
        began = min(one.steps[0].number for one in job.that_trained(run, job.run))
        if began != checkpoint + 1:
            raise WrongError(
                f"the checkpoint is {checkpoint}, and step {began} is next"
            )
        again = last - checkpoint
    else:
        if change is Change.PERHAPS:  # It is noticed within five seconds, and two.
            time.sleep(8)
            since = time.monotonic()
        first = job.await_step(since, run, generation)
    full = job.await_step(since, run, generation, full=True)
    for number in range(before, job.run + 1):
        check(job.that_trained(number, number))
    row = first - since, full - since, again
    seen.rows.setdefault(what, []).append(row)
    print(f": {row[0]:.1f} s, {row[1]:.1f} s, {row[2]} steps again", flush=True)


def train_for(job: Training, minutes: float, chance: random.Random, seen: Seen) -> None:
    """Something each minute, for so long."""
    job.await_step(0.0, 0, 0, full=True)
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
            job.await_requeued()
            job.await_step(time.monotonic(), run + 1, 0, full=True)
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
            if problem := compare(losses, others.result()):
                seen.problems.append(problem)
        except Exception as error:
            seen.problems.append(repr(error))
            print(f"\nWRONG: {error!r}", flush=True)
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
