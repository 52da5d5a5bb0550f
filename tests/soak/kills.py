"""Kills ranks of a `fit` with `Elastic()`, again and again, and counts what is wrong.

`python tests/soak/kills.py [KILLS] [SEED]`, or `make soak-kills`. Ends with code 1 if
anything was: a step that somebody had applied is lost, an example was trained on twice,
weights differ, or the job does not go on. Each time one or two ranks of four are
killed, each as often. Then it waits until others have taken their places. Says how long
everything took.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak.history import Process, Step, WrongError, check

SIZE = 4
MIN_SIZE = 2
# So many of all ranks, and the job is whole again.
LAST_STEPS = 5
DEADLINE_S = 180.0
# Of an epoch in which ranks come or go, fewer items at its end than there are ranks are
# left out, as remainder="drop" has it.
MOST_LEFT_OUT = SIZE - 1
TRAINING = Path(__file__).with_name("killed_training.py")


class Victim(Process):
    """A process that may be killed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.killed = False
        imported = path.with_name(f"imported.{self.number}")
        self.imported_at = float(imported.read_text())


class Job:
    """The job, and what was seen of it.

    Args:
        directory: For its files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: dict[int, Victim] = {}
        self._forgotten: set[int] = set()
        self.output = directory / "output"
        with self.output.open("wb") as output:
            self.ringrun = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ring_keras.launch", "-np", str(SIZE)),
                    *("--min-np", str(MIN_SIZE), "--max-np", str(SIZE)),
                    *("--blacklist-cooldown-range", "0", "0"),
                    *(sys.executable, str(TRAINING), str(directory), "1000000"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def wait(self, condition: str, seen: object) -> None:
        """Until `seen()`; raises WrongError if it does not come."""
        deadline = time.monotonic() + DEADLINE_S
        assert callable(seen)
        while True:
            self._read()
            if seen():
                return
            if self.ringrun.poll() is not None:
                raise WrongError(f"ringrun has ended with {self.ringrun.returncode}")
            if time.monotonic() > deadline:
                raise WrongError(f"not within {DEADLINE_S:g} s: {condition}")
            time.sleep(0.02)

    def living(self) -> list[Victim]:
        """Those that nobody has killed."""
        return [one for one in self.processes.values() if not one.killed]

    def is_full(self, since: float) -> bool:
        """Whether all ranks have done some steps together since then."""
        full = [
            one
            for one in self.living()
            if len(one.steps) > LAST_STEPS
            and one.steps[-LAST_STEPS].size == SIZE
            and one.steps[-LAST_STEPS].at > since
        ]
        return len(full) == SIZE

    def forget(self) -> None:
        """Drops what has been checked, but for what is still to be compared.

        A whole run has millions of steps.
        """
        for number, process in list(self.processes.items()):
            if process.killed:
                self._forgotten.add(number)
                del self.processes[number]
                continue
            steps = process.steps
            if not steps:
                continue
            since = steps[-1].generation - 1
            keep = sum(step.generation >= since for step in steps)
            del steps[: max(0, len(steps) - max(keep, LAST_STEPS))]

    def _read(self) -> None:
        for path in self.directory.glob("steps.*"):
            number = int(path.suffix[1:])
            if number not in self.processes and number not in self._forgotten:
                self.processes[number] = Victim(path)
        for process in self.processes.values():
            process.read()


def one_round(
    job: Job, chance: random.Random
) -> tuple[int, float, float, float, float]:
    """Kills some; returns how many, and the seconds until others have done a step,
    until all ranks are there again, from a replacement's imports to that, and of the
    longest pause of those that were there while it joined."""
    job.wait("all ranks train", lambda: job.is_full(0.0))
    time.sleep(chance.uniform(0.0, 0.3))
    victims = chance.sample(job.living(), chance.choice([1, 2]))
    survivors = [one for one in job.living() if one not in victims]
    known = set(job.processes)
    killed_at = time.monotonic()
    for victim in victims:
        victim.killed = True
        os.kill(victim.pid, signal.SIGKILL)

    def steps(one: Victim, full: bool) -> list[Step]:
        after = [step for step in one.steps if step.at > killed_at]
        return [step for step in after if (step.size == SIZE) == full]

    job.wait("the others go on", lambda: any(steps(one, False) for one in survivors))
    job.wait("others have come", lambda: job.is_full(killed_at + 0.01))
    # A step that had begun may have ended after the kill, with all.
    firsts = [line for one in survivors for line in steps(one, False)]
    reduced = min(firsts)
    newcomers = [job.processes[number] for number in set(job.processes) - known]
    full = min(line for one in newcomers for line in steps(one, True))
    imported_at = max(one.imported_at for one in newcomers)
    pauses = []
    for one in survivors:
        around = [step for step in one.steps if reduced.at <= step.at <= full.at + 1.0]
        pauses += [b.at - a.at for a, b in itertools.pairwise(around)]
    check(list(job.processes.values()))
    job.forget()
    return (
        len(victims),
        reduced.at - killed_at,
        full.at - killed_at,
        full.at - imported_at,
        max(pauses),
    )


def check_end(job: Job) -> str:
    """Ends the job; what its ranks have to say of their examples."""
    (job.directory / "stop").touch()
    code = job.ringrun.wait(DEADLINE_S)
    if code != 0:
        raise WrongError(f"ringrun has ended with {code}")
    ends = {path.read_text() for path in job.directory.glob("end.*")}
    if len(ends) != 1:
        raise WrongError(f"the ranks end differently: {ends}")
    epochs, most, left_out, _ = ends.pop().split()
    if int(most) > int(epochs):
        raise WrongError(f"an example was trained on {most} times in {epochs} epochs")
    if int(left_out) > int(epochs) * MOST_LEFT_OUT:
        raise WrongError(f"{left_out} examples were left out in {epochs} epochs")
    return f"{epochs} epochs; of their examples none twice, {left_out} left out"


def main(kills: int, seed: int) -> int:
    """Kills so many ranks, and says what it saw."""
    chance = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="ring-keras-kills-"))
    print(f"seed {seed}, {directory}", flush=True)
    job = Job(directory)
    rounds = []
    problem = None
    try:
        while sum(done for done, *_ in rounds) < kills:
            rounds.append(one_round(job, chance))
            if len(rounds) % 20 == 0:
                print(f"{sum(done for done, *_ in rounds)} kills", flush=True)
        print(check_end(job))
    except WrongError as wrong:
        problem = wrong
    finally:
        job.ringrun.terminate()
        job.ringrun.wait()
    print(f"{sum(done for done, *_ in rounds)} kills in {len(rounds)} rounds")
    titles = (
        "kill to a step of fewer ranks",
        "kill to all ranks again",
        "imports done to all ranks",
        "pause of the others meanwhile",
    )
    for title, values in zip(titles, list(zip(*rounds, strict=True))[1:], strict=False):
        ordered = sorted(values)
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        print(
            f"{title}: median {statistics.median(ordered):.2f} s, p99 {p99:.2f} s, "
            f"most {ordered[-1]:.2f} s"
        )
    if problem is not None:
        print(f"WRONG: {problem}; see {job.output}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(numbers + [1200, random.randrange(10**6)][len(numbers) :])))
