"""An elastic job that may lose its launcher, on three hosts, and what is seen of it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

from soak.history import Process, WrongError
from support.ssh_hosts import SshHosts

SIZE = 3
# More than the 70 s after which a host that was cut off is asked again.
DEADLINE_S = 180.0
RANK = Path(__file__).with_name("counting_steps.py")


def is_python(pid: int) -> bool:
    """Whether that process is one of Python."""
    with contextlib.suppress(OSError):
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    return False


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
        return [one for one in self.processes.values() if one.is_alive()]

    def is_over(self) -> bool:
        """Whether its launcher has ended, and none of its processes is left.

        Before the launcher has begun, there is none either.
        """
        return self._ringrun.poll() is not None and not any(
            self.hosts.leftovers(host) for host in range(SIZE)
        )

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
