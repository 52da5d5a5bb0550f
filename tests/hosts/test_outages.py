"""Outages of some seconds between the parties of a job, which are not deaths."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from support.elastic_loop import LOOP, await_sizes
from support.network import run
from support.processes import wait_until
from support.ringrun import Finished, Ringrun
from support.ssh_hosts import SshHosts
from support.variants import variants

pytestmark = pytest.mark.hosts
SLOW = pytest.mark.slow

# As in a user's job: 30 s, and 5 s where ranks may be lost.
FIXED: list[str] = []
ELASTIC = [
    *("--min-np", "1", "--max-np", "2"),
    *("--blacklist-cooldown-range", "1", "4"),
]


@pytest.fixture(autouse=True)
def patient(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RING_KERAS_HEARTBEAT_TIMEOUT_S")


class Job:
    """Ranks on two hosts, and ringrun on a third.

    Args:
        ringrun: On the third.
        hosts: All three.
        options: For ringrun.
    """

    def __init__(self, ringrun: Ringrun, hosts: SshHosts, options: list[str]) -> None:
        self.directory = ringrun.directory
        self._ringrun = ringrun
        self._hosts = hosts
        ssh = ("--ssh-args", hosts.ssh_args, "--grace-period", "2")
        self.process = ringrun.start(LOOP, "-H", "node1:1,node2:1", *ssh, *options)
        for number in (0, 1):
            await_sizes(self.directory, number, "[2]", timeout_s=90)
        self.pids, self.noted = ringrun.pids, ringrun.noted
        self.before = self.pids("pid.0", "pid.1")

    def steps_go_on(self, number: int) -> bool:
        """Whether that process takes another step soon."""
        path = self.directory / f"sizes.{number}"
        last = path.stat().st_mtime_ns
        with contextlib.suppress(AssertionError):
            wait_until(lambda: path.stat().st_mtime_ns > last, "a step", 40)
            return True
        return False

    def launcher(self) -> list[int]:
        """Its processes."""
        pids = self._hosts.find(0, "-m ring_keras.launch -np")
        return [pid for pid in pids if pid != self.process.pid]

    def stop(self) -> Finished:
        """Ends it after its next step."""
        (self.directory / "stop").touch()
        return self._ringrun.finish(self.process)


@contextlib.contextmanager
def cut_off(hosts: SshHosts, host: int) -> Iterator[None]:
    """That host, from all others."""
    hosts.set_link(host, "down")
    yield
    hosts.set_link(host, "up")


@contextlib.contextmanager
def parted(hosts: SshHosts, one: int, other: int) -> Iterator[None]:
    """Two hosts, from each other."""
    commands = hosts.cutting(one, other)
    for command in commands:
        run(*command)
    yield
    for command in commands:
        run(*command[:-1], "off")


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Processes, as a debugger or a machine that moves stops them."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # It was given up, and killed.
            os.kill(pid, signal.SIGCONT)


Outage = Callable[[SshHosts, Job], contextlib.AbstractContextManager[None]]
OUTAGES: dict[str, Outage] = {
    "launcher's host": lambda hosts, _: cut_off(hosts, 0),
    "a rank's host": lambda hosts, _: cut_off(hosts, 1),
    "two hosts": lambda hosts, _: parted(hosts, 1, 2),
    "launcher": lambda _, job: stopped(job.launcher()),
    "agent": lambda hosts, _: stopped(hosts.find(1, "ring_keras.launch.agent")[-1:]),
    "rank": lambda _, job: stopped(job.before[:1]),
}


def stderr_after(
    job: Job, hosts: SshHosts, outage: contextlib.AbstractContextManager[None], s: float
) -> str:
    """After so many seconds of it the same processes take steps, and end well."""
    with outage:
        time.sleep(s)  # It is this long.
    for number in (0, 1):
        assert job.steps_go_on(number), number
    finished = job.stop()
    said = finished.stderr.decode()
    assert finished.returncode == 0, said
    assert job.pids("end.0", "end.1") == job.before
    hosts.wait_until_empty()
    return said


@pytest.mark.parametrize("options", [ELASTIC, pytest.param(FIXED, marks=SLOW)])
@pytest.mark.parametrize(
    ("party", "seconds"),
    [
        ("launcher's host", 6),
        *(
            pytest.param(party, seconds, marks=SLOW)
            for party, seconds in (
                ("launcher's host", 3),
                ("launcher's host", 12),
                ("launcher", 6),
                ("launcher", 30),
                ("agent", 6),
                ("rank", 3),
                ("a rank's host", 3),
                ("two hosts", 3),
            )
        ),
    ],
)
def test_nobody_notices(
    ringrun: Ringrun, hosts: SshHosts, party: str, seconds: float, options: list[str]
) -> None:
    job = Job(ringrun, hosts, options)
    said = stderr_after(job, hosts, OUTAGES[party](hosts, job), seconds)
    assert "ringrun: " not in said


@pytest.mark.parametrize(
    ("party", "seconds"),
    [
        ("a rank's host", 6),
        pytest.param("rank", 6, marks=SLOW),
        # For 6 s it is up to when TCP tries again: they give up after 7.
        pytest.param("two hosts", 12, marks=SLOW),
        # They begin generation after generation, until they reach each other.
        pytest.param("two hosts", 20, marks=SLOW),
    ],
)
def test_an_elastic_job_meets_anew(
    ringrun: Ringrun, hosts: SshHosts, party: str, seconds: float
) -> None:
    job = Job(ringrun, hosts, ELASTIC)
    said = stderr_after(job, hosts, OUTAGES[party](hosts, job), seconds)
    assert "elastic: going on with 2 ranks" in said
    assert "killing" not in said


@SLOW
@pytest.mark.parametrize("party", ["a rank's host", "agent", "rank"])
def test_who_was_given_up_is_taken_back(
    ringrun: Ringrun, hosts: SshHosts, party: str
) -> None:
    job = Job(ringrun, hosts, ELASTIC)
    with OUTAGES[party](hosts, job):
        await_sizes(job.directory, 1, "[2, 1]", "[2, 1, 2]")
    for number in (1, 2):
        await_sizes(job.directory, number, "[2, 1, 2]", timeout_s=90)
    finished = job.stop()
    said = finished.stderr.decode()
    assert finished.returncode == 0, said
    assert job.noted("host.2") == "node1"
    assert job.pids("end.1") == job.before[1:]
    assert ("elastic: host node1 is back" in said) == (party != "rank")
    hosts.wait_until_empty(60)


@pytest.mark.parametrize("options", variants([ELASTIC], [FIXED]))
def test_ctrl_c_does_not_wait_for_hosts_that_are_cut_off(
    ringrun: Ringrun, hosts: SshHosts, options: list[str]
) -> None:
    job = Job(ringrun, hosts, options)

    with cut_off(hosts, 1):
        job.process.send_signal(signal.SIGINT)
        # The line to that host ends by itself after 35.
        finished = ringrun.finish(job.process, timeout_s=25)

    assert finished.returncode == 128 + signal.SIGINT
    assert "[RK821] ranks [0] were killed" in finished.stderr.decode()
    hosts.wait_until_empty(60)


@SLOW
def test_a_spare_host_that_is_heard_gives_nobody_up(
    ringrun: Ringrun, hosts: SshHosts
) -> None:
    ssh = ("--ssh-args", hosts.ssh_args, "--grace-period", "2")
    options = ("-H", "node1:1,node2:1", *ssh, "--min-np", "1", "--max-np", "1")
    process = ringrun.start(LOOP, *options, size=1)
    await_sizes(ringrun.directory, 0, "[1]", timeout_s=90)
    (before,) = ringrun.pids("pid.0")

    with cut_off(hosts, 1):
        time.sleep(14)  # It is this long.

    (ringrun.directory / "stop").touch()
    finished = ringrun.finish(process)
    assert finished.returncode == 0, finished.stderr.decode()
    assert ringrun.pids("end.0") == [before]
    hosts.wait_until_empty()
