"""Elastic jobs on several hosts: ranks, and whole hosts, are lost and replaced."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from support.elastic_loop import LOOP, await_sizes
from support.processes import wait_until
from support.ringrun import Finished, Ringrun
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts


def start(
    ringrun: Ringrun, hosts: SshHosts, *options: str, size: int | None = 2
) -> subprocess.Popen[bytes]:
    if "--max-np" in options:
        options = ("--blacklist-cooldown-range", "0", "0", *options)
    ssh = ["--ssh-args", hosts.ssh_args, "--grace-period", "2"]
    return ringrun.start(LOOP, *ssh, *options, size=size)


def stop(ringrun: Ringrun, job: subprocess.Popen[bytes]) -> Finished:
    (ringrun.directory / "stop").touch()
    return ringrun.finish(job)


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_rank_of_another_host_is_replaced_there(
    ringrun: Ringrun, hosts: SshHosts, encrypted: bool
) -> None:
    options = ["--min-np", "1", "--max-np", "2", *["--encrypt"] * encrypted]
    job = start(ringrun, hosts, "-H", "node0:1,node1:1", *options)
    await_sizes(ringrun.directory, 0, "[2]")
    before = ringrun.pids("pid.0", "pid.1")

    os.kill(before[1], signal.SIGKILL)

    for number in (0, 2):
        await_sizes(ringrun.directory, number, "[2, 1, 2]")
    finished = stop(ringrun, job)
    assert finished.returncode == 0, finished.stderr.decode()
    assert ringrun.pids("end.0") == before[:1]
    assert ringrun.noted("host.2") == "node1"
    assert ringrun.noted("end.2")
    hosts.wait_until_empty()


@pytest.mark.parametrize("how", ["its agent is killed", "its link is cut"])
def test_a_lost_host_is_replaced_by_one_with_free_slots(
    ringrun: Ringrun, hosts: SshHosts, how: str
) -> None:
    options = ["--min-np", "1", "--max-np", "2"]
    job = start(ringrun, hosts, "-H", "node0:1,node1:1,node2:1", *options)
    await_sizes(ringrun.directory, 0, "[2]")
    before = ringrun.pids("pid.0")

    if how == "its link is cut":
        hosts.set_link(1, "down")
    else:
        os.kill(hosts.find(1, "ring_keras.launch.agent")[-1], signal.SIGKILL)

    await_sizes(ringrun.directory, 0, "[2, 1, 2]", timeout_s=60)
    finished = stop(ringrun, job)
    said = finished.stderr.decode()
    assert finished.returncode == 0, said
    assert ringrun.pids("end.0") == before
    assert ringrun.noted("host.2") == "node2"
    assert "process 1 (rank 1, host node1, pid" in said
    assert "elastic: host node1 was lost: " in said
    hosts.wait_until_empty(60)


def test_a_lost_host_that_leaves_too_few_ends_the_job(
    ringrun: Ringrun, hosts: SshHosts
) -> None:
    job = start(ringrun, hosts, "-H", "node0:1,node1:1", "--min-np", "2")
    await_sizes(ringrun.directory, 0, "[2]")

    os.kill(hosts.find(1, "ring_keras.launch.agent")[-1], signal.SIGKILL)

    finished = ringrun.finish(job)
    assert finished.returncode == 75
    assert "fewer than --min-np 2 ranks are left (1)" in finished.verdict
    assert "host node1 was lost" in finished.verdict
    hosts.wait_until_empty()


class Script:
    """Names the hosts that there are at the moment.

    Args:
        ringrun: Has a directory for it.
    """

    def __init__(self, ringrun: Ringrun) -> None:
        self._directory = ringrun.directory
        self.path = self._directory / "hosts.sh"
        there, asked = self._directory / "there", self._directory / "asked"
        self.path.write_text(f"#!/bin/sh\necho >>{asked}\ncat {there}\n")
        self.path.chmod(0o755)

    @property
    def asked(self) -> int:
        """How often it has been asked."""
        asked = self._directory / "asked"
        return len(asked.read_text()) if asked.exists() else 0

    def there_are(self, lines: str) -> None:
        (self._directory / "soon").write_text(lines)
        (self._directory / "soon").rename(self._directory / "there")


def test_a_lost_host_is_tried_again_while_it_is_named(
    ringrun: Ringrun, hosts: SshHosts
) -> None:
    script = Script(ringrun)
    nobody = hosts.addresses[0].rpartition(".")[0] + ".250"
    script.there_are(f"{nobody}\nnode1\nnode2\n")  # The job begins without that one.
    options = ["--min-np", "2", "--max-np", "2"]
    job = start(
        ringrun, hosts, "--host-discovery-script", str(script.path), *options, size=None
    )
    await_sizes(ringrun.directory, 0, "[2]", timeout_s=60)
    before = ringrun.pids("pid.0")

    os.kill(hosts.find(2, "ring_keras.launch.agent")[-1], signal.SIGKILL)

    await_sizes(ringrun.directory, 2, "[2]", timeout_s=60)
    finished = stop(ringrun, job)
    said = finished.stderr.decode()
    assert finished.returncode == 0, said
    assert ringrun.pids("end.0") == before
    assert ringrun.noted("host.2") == "node2"
    assert f"host {nobody}: ssh cannot reach it" in said
    assert said.count("host node2 is back") == 1
    hosts.wait_until_empty()


@pytest.mark.parametrize("then", ["it comes up", "another one has its slots"])
def test_a_host_that_is_not_up_yet_is_waited_for(
    ringrun: Ringrun, hosts: SshHosts, then: str
) -> None:
    script = Script(ringrun)
    script.there_are("node1\nnode2\n")
    hosts.set_link(2, "down")
    options = ["--min-np", "2", "--max-np", "2"]
    job = start(
        ringrun, hosts, "--host-discovery-script", str(script.path), *options, size=None
    )
    # The second time because that host was not there.
    wait_until(lambda: script.asked > 1, "the script was asked again", 60)

    if then == "it comes up":
        hosts.set_link(2, "up")
        expected = ["node1", "node2"]
    else:
        script.there_are("node1:2\n")
        expected = ["node1", "node1"]

    await_sizes(ringrun.directory, 1, "[2]", timeout_s=60)
    finished = stop(ringrun, job)
    said = finished.stderr.decode()
    assert finished.returncode == 0, said
    assert said.count("host node2 is not there yet, and is tried again: ") == 1
    assert sorted(ringrun.noted(f"host.{n}") for n in (0, 1)) == expected
    hosts.wait_until_empty()


def test_hosts_come_and_go_as_a_script_says(ringrun: Ringrun, hosts: SshHosts) -> None:
    script = Script(ringrun)
    script.there_are("node1\n")
    options = ["--min-np", "1", "--max-np", "2"]
    job = start(
        ringrun, hosts, "--host-discovery-script", str(script.path), *options, size=None
    )
    await_sizes(ringrun.directory, 0, "[1]")
    script.there_are("node1:1\nnode2\n")
    await_sizes(ringrun.directory, 1, "[1, 2]")

    script.there_are("node2 slots=2\n")  # What was trained on node1 goes on there.

    await_sizes(ringrun.directory, 2, "[1, 2, 1, 2]", "[1, 2]")
    finished = stop(ringrun, job)
    said = finished.stderr.decode()
    assert finished.returncode == 0, said
    assert [ringrun.noted(f"host.{n}") for n in range(3)] == ["node1", "node2", "node2"]
    assert ringrun.noted("end.1")
    assert ringrun.noted("end.2")
    assert not (ringrun.directory / "end.0").exists()
    assert "elastic: host node2 has come" in said
    assert "elastic: host node1 is to be given back" in said
    hosts.wait_until_empty()
