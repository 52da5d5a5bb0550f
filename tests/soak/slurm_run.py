"""An elastic job in Slurm whose ranks train on digits, and what is seen of it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from soak.history import Process, WrongError
from soak.hosted_job import is_python
from support.job import light_environment
from support.object_stores import KINDS
from support.processes import wait_until
from support.slurm import Slurm
from support.slurm_jobs import REQUEUES, Jobs

SIZE = 3
DEADLINE_S = 300.0
# With a step, that makes epochs of ten seconds.
PAUSE_S = 0.3
TRAINING = Path(__file__).with_name("slurm_training.py")
CHECKPOINTS = "s3://soak/checkpoints"
# The record of a part: run, step, whose it is, and of how many.
RECORD = re.compile(r"run-(\d+)-step-(\d+)\.(\S+)\.\d+-of-(\d+)\.json")
LOST = re.compile(r"elastic: host (\S+) was lost")
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
        self._said_before = 0  # By earlier runs.
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

    def that_trained(self, first: int, last: int) -> list[Process]:
        """The processes of these runs that have done a step."""
        found = self.processes.items()
        return [one for (run, _), one in found if first <= run <= last and one.steps]

    def living(self) -> list[Process]:
        """The ranks that have not ended."""
        trained = self.that_trained(self.run, self.run)
        return [one for one in trained if one.is_alive()]

    def generation(self) -> int:
        """Of its newest step."""
        return max(one.steps[-1].generation for one in self.living())

    def most_ranks(self) -> int:
        """How many there can be: a host that the job has lost is lost until it is
        requeued, and the others have two slots each."""
        said = self._said()[self._said_before :]
        return min(SIZE, 2 * (SIZE - len(set(LOST.findall(said)))))

    def await_step(
        self, since: float, run: int, generation: int, *, full: bool = False
    ) -> float:
        """Until a rank, or all that there can be, has done a step.

        Args:
            since: When that is to be, at the earliest.
            run: In which run of the job, at the earliest.
            generation: In which of this run, at the earliest.
            full: Whether all ranks that there can be are to do so together.

        Returns:
            When that was.

        Raises:
            WrongError: If it takes too long.
        """
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self.read()
            size = self.most_ranks() if full else 1
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
        self._said_before = len(self._said())
        return self.newest_checkpoint()

    def others_with_ranks(self) -> list[int]:
        """Hosts beside that of `ringrun`."""
        ranks = {one.pid for one in self.living()}
        return [host for host in (1, 2) if ranks & set(self.hosts.leftovers(host))]

    def on_host(self, host: int, text: str) -> list[int]:
        """The processes of Python there whose command has that."""
        found = self.hosts.find(host, text)
        return list(filter(is_python, found))

    def _said(self) -> str:
        """What all runs have printed."""
        output = self.directory / "output"
        return output.read_text() if output.exists() else ""

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
