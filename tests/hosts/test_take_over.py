"""Elastic jobs on several hosts that lose their launcher, or its host."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest
from support.elastic_loop import LOOP, await_sizes
from support.lost_launcher import OUTAGE_S, LostLauncher
from support.processes import wait_until
from support.ringrun import Ringrun
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts


@pytest.fixture(autouse=True)
def patient(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RING_KERAS_HEARTBEAT_TIMEOUT_S")


@pytest.fixture
def elsewhere(hosts: SshHosts, ringrun: Ringrun) -> Iterator[Ringrun]:
    """ringrun on the second host."""
    runner = Ringrun(ringrun.directory, hosts.on(1))
    yield runner
    runner.close()


@pytest.fixture
def job(ringrun: Ringrun) -> Iterator[LostLauncher]:
    made = LostLauncher(ringrun)
    yield made
    made.close()


def begin(
    job: LostLauncher,
    hosts: SshHosts,
    where: str,
    *options: str,
    outage_s: str | None = OUTAGE_S,
) -> None:
    """Starts a job of the first host's."""
    ssh = ("--ssh-args", hosts.ssh_args, "--grace-period", "2", "--min-np", "1")
    size = where.count(":")
    job.begin(LOOP, "-H", where, *ssh, *options, size=size, outage_s=outage_s)


def stop(ringrun: Ringrun, job: LostLauncher, hosts: SshHosts) -> str:
    """What the ringrun that has the job says, which ends well."""
    (ringrun.directory / "stop").touch()
    finished = ringrun.finish(job.process)
    assert finished.returncode == 0, finished.stderr.decode()
    hosts.wait_until_empty()
    return finished.stderr.decode()


def await_generation(ringrun: Ringrun, number: int) -> None:
    """Until the process takes steps with the launcher that there is now."""
    path = ringrun.directory / f"sizes.{number}"
    last = path.stat().st_mtime_ns
    wait_until(lambda: path.stat().st_mtime_ns > last, "another step", 60)


@pytest.mark.parametrize(
    "encrypted", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_launcher_on_another_host_takes_over(
    ringrun: Ringrun,
    elsewhere: Ringrun,
    job: LostLauncher,
    hosts: SshHosts,
    encrypted: bool,
) -> None:
    options = ["--max-np", "2", "--blacklist-cooldown-range", "0", "0"]
    options += ["--encrypt"] * encrypted
    begin(job, hosts, "root@node1:1,node2:1", *options)
    await_sizes(ringrun.directory, 0, "[2]", timeout_s=60)
    before = ringrun.pids("pid.0", "pid.1")

    job.lose()
    job.take_over(by=elsewhere)
    await_generation(ringrun, 0)
    os.kill(before[1], signal.SIGKILL)

    await_sizes(ringrun.directory, 2, "[2, 1, 2]", timeout_s=60)
    said = stop(ringrun, job, hosts)
    assert ringrun.pids("end.0") == before[:1]
    assert ringrun.noted("host.2") == "node2"
    assert "elastic: took the job over, as its launcher of term 2" in said
    assert "has come" not in said  # It knows all that are listed.


def test_a_host_is_lost_with_its_launcher_and_its_rank(
    ringrun: Ringrun, elsewhere: Ringrun, job: LostLauncher, hosts: SshHosts
) -> None:
    begin(job, hosts, "node0:1,node1:1,node2:1")
    await_sizes(ringrun.directory, 1, "[3]", timeout_s=60)
    before = ringrun.pids("pid.1", "pid.2")
    job.await_card()

    hosts.set_link(0, "down")
    for pid in hosts.leftovers(0):
        os.kill(pid, signal.SIGKILL)
    job.take_over(by=elsewhere)

    await_sizes(ringrun.directory, 1, "[3, 2]", timeout_s=60)
    said = stop(ringrun, job, hosts)
    assert ringrun.pids("end.1", "end.2") == before
    assert "host node0: it did not answer within 5 s" in said


def test_a_host_that_is_cut_off_can_be_ended_later(
    ringrun: Ringrun, job: LostLauncher, hosts: SshHosts
) -> None:
    cooldown = ("--max-np", "3", "--blacklist-cooldown-range", "0", "0")
    begin(job, hosts, "node0:1,node1:1,node2:1", *cooldown)
    for number in (0, 1, 2):
        await_sizes(ringrun.directory, number, "[3]", timeout_s=60)
    job.lose()

    # One host's agent is lost, one cannot be asked.
    for pid in hosts.leftovers(1):
        os.kill(pid, signal.SIGKILL)
    hosts.set_link(2, "down")
    job.take_over("--end")
    finished = ringrun.finish(job.process)
    assert finished.returncode == 1, finished.stderr.decode()
    assert "[RK827] the ranks of the agents that are there have" in finished.verdict
    assert "no word from host node2, " in finished.verdict
    assert "host node1: its agent has ended" in finished.stderr.decode()
    agents = json.loads(job.card.read_text())["agents"]
    assert [agent["name"] for agent in agents] == ["node2"]
    assert hosts.leftovers(2)

    hosts.set_link(2, "up")
    job.take_over("--end")
    finished = ringrun.finish(job.process)
    assert finished.returncode == 0, finished.stderr.decode()
    assert not job.card.exists()
    hosts.wait_until_empty()


def test_one_that_was_cut_off_ends_alone(
    ringrun: Ringrun, elsewhere: Ringrun, job: LostLauncher, hosts: SshHosts
) -> None:
    begin(job, hosts, "node1:1,node2:1")
    await_sizes(ringrun.directory, 0, "[2]", timeout_s=60)
    before = ringrun.pids("pid.0", "pid.1")
    job.await_card()
    first = job.process

    hosts.set_link(0, "down")
    job.take_over(by=elsewhere)
    await_generation(ringrun, 0)
    hosts.set_link(0, "up")

    finished = ringrun.finish(first)
    assert "[RK824] another launcher, of term 2, has taken" in finished.verdict
    stop(ringrun, job, hosts)
    assert ringrun.pids("end.0", "end.1") == before


def test_the_larger_side_of_a_cut_goes_on(
    ringrun: Ringrun, job: LostLauncher, hosts: SshHosts
) -> None:
    begin(job, hosts, "node0:1,node1:1,node2:1", "--heirs", outage_s=None)
    for number in (0, 1, 2):
        await_sizes(ringrun.directory, number, "[3]", timeout_s=90)
    job.await_card()

    hosts.set_link(0, "down")
    await_sizes(ringrun.directory, 1, "[3, 2]", timeout_s=90)
    await_generation(ringrun, 1)
    # Rank 0 may not go on alone.
    assert ringrun.noted("sizes.0") == "[3]"

    finished = ringrun.finish(job.process, 90)
    assert finished.returncode == 75, finished.stderr.decode()
    assert "half of the ranks, or more, are cut off" in finished.verdict
    hosts.set_link(0, "up")
    (ringrun.directory / "stop").touch()
    assert ringrun.noted("end.1")
    assert ringrun.noted("sizes.0") == "[3]"
    hosts.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.parametrize("cut_s", [10.3, 11.2])
def test_a_cut_may_end_when_hosts_are_given_up(
    ringrun: Ringrun, job: LostLauncher, hosts: SshHosts, cut_s: float
) -> None:
    """What the first launcher would do to the others' ranks must not reach them."""
    where = "node0:1,node1:1,node2:1"
    options = ("--max-np", "3", "--blacklist-cooldown-range", "0", "0", "--heirs")
    begin(job, hosts, where, *options, outage_s=None)
    for number in (0, 1, 2):
        await_sizes(ringrun.directory, number, "[3]", timeout_s=90)
    job.await_card()

    hosts.set_link(0, "down")
    time.sleep(cut_s)
    hosts.set_link(0, "up")

    await_generation(ringrun, 1)
    await_generation(ringrun, 2)
    (ringrun.directory / "stop").touch()
    assert ringrun.noted("end.1")
    assert ringrun.noted("end.2")
    hosts.wait_until_empty(60)


@pytest.mark.slow
def test_two_hosts_without_that_of_rank_0_wait_for_the_user(
    ringrun: Ringrun, elsewhere: Ringrun, job: LostLauncher, hosts: SshHosts
) -> None:
    begin(job, hosts, "node0:1,node1:1", "--heirs")
    await_sizes(ringrun.directory, 1, "[2]", timeout_s=90)
    job.await_card()

    hosts.set_link(0, "down")
    for pid in hosts.leftovers(0):
        os.kill(pid, signal.SIGKILL)
    log = ringrun.directory / "card.log"
    wait_until(
        lambda: log.exists() and "and 1 may be elsewhere" in log.read_text(),
        "a successor has been refused",
        60,
    )
    job.take_over(by=elsewhere)

    await_sizes(ringrun.directory, 1, "[2, 1]", timeout_s=60)
    stop(ringrun, job, hosts)
