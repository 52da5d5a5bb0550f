"""Hosts without ssh, on which agents wait for ringrun to call."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.elastic_loop import LOOP, await_sizes
from support.processes import wait_until
from support.ringrun import Ringrun
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts

PORT = 4712

JOIN = """
import socket
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None  # Or errors would be made of its, in seconds.
_native.init(**Config.from_environment().init_options())
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(32))
    return file


@pytest.fixture
def wait_on(
    hosts: SshHosts, tmp_path: Path, secret: Path
) -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    """Has an agent wait on a host."""
    started = []

    def start(host: int) -> subprocess.Popen[bytes]:
        listen = f"{hosts.host_names[host]}:{PORT}"
        words = [sys.executable, "-m", "ring_keras.launch.listening_agent"]
        words += ["--listen", listen, "--secret-file", str(secret)]
        log = tmp_path / f"agent{host}-{len(started)}"
        process = subprocess.Popen(hosts.on(host, *words), stderr=log.open("wb"))
        started.append(process)
        wait_until(lambda: "waits at" in log.read_text(), f"host {host} waits")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(30)


def options_of(secret: Path) -> list[str]:
    options = ["--agent-port", str(PORT), "--secret-file", str(secret)]
    return [*options, "--grace-period", "2"]


def test_ringrun_calls_them_for_one_job_after_the_other(
    ringrun: Ringrun,
    wait_on: Callable[[int], subprocess.Popen[bytes]],
    secret: Path,
) -> None:
    for host in (1, 2):
        wait_on(host)
    script = JOIN + (
        "total = _native.allreduce(np.ones(2, np.float32), name='x')\n"
        "print(socket.gethostname(), total)\n"
        "_native.shutdown('done')\n"
    )
    for _ in range(2):
        hosts = ["-H", "node1:1,node2:2"]
        finished = ringrun.run(script, *hosts, *options_of(secret), size=None)

        assert finished.returncode == 0, finished.stderr.decode()
        assert sorted(finished.stdout.decode().splitlines()) == [
            "[0] node1 [3. 3.]",
            "[1] node2 [3. 3.]",
            "[2] node2 [3. 3.]",
        ]


def test_a_killed_one_is_named_and_no_rank_is_left(
    ringrun: Ringrun,
    hosts: SshHosts,
    wait_on: Callable[[int], subprocess.Popen[bytes]],
    secret: Path,
) -> None:
    for host in (1, 2):
        wait_on(host)
    script = JOIN + (
        "note(f'ready{rank}')\n"
        "while True: _native.allreduce(np.ones(9, np.float32), name='gradient')\n"
    )
    job = ringrun.start(script, "-H", "node1:1,node2:1", *options_of(secret), size=None)
    for rank in range(2):
        ringrun.noted(f"ready{rank}")

    hosts.set_link(2, "down")

    finished = ringrun.finish(job)
    assert finished.returncode == 1
    assert "host node2 was lost" in finished.verdict
    for host in (1, 2):
        wait_until(
            lambda h=host: not hosts.find(h, "script.py"), f"host {host} has no rank"
        )


def test_an_elastic_job_goes_on_when_a_host_comes_back(
    ringrun: Ringrun,
    hosts: SshHosts,
    wait_on: Callable[[int], subprocess.Popen[bytes]],
    secret: Path,
) -> None:
    wait_on(1)
    wait_on(2)
    discovery = ringrun.directory / "hosts.sh"
    discovery.write_text("#!/bin/sh\necho node1; echo node2\n")
    discovery.chmod(0o755)
    job = ringrun.start(
        LOOP,
        *("--host-discovery-script", str(discovery), "--min-np", "1", "--max-np", "2"),
        *("--blacklist-cooldown-range", "0", "0"),
        *options_of(secret),
        size=None,
    )
    await_sizes(ringrun.directory, 0, "[2]", timeout_s=60)

    for pid in hosts.find(2, "listening_agent"):
        os.kill(pid, signal.SIGKILL)
    await_sizes(ringrun.directory, 0, "[2, 1]", timeout_s=60)
    wait_on(2)

    await_sizes(ringrun.directory, 0, "[2, 1, 2]", timeout_s=60)
    (ringrun.directory / "stop").touch()
    finished = ringrun.finish(job)
    said = finished.stderr.decode()
    assert finished.returncode == 0, said
    assert "host node2 was lost: its agent has closed the line" in said


def test_another_secret_is_said_to_be_the_reason(
    ringrun: Ringrun,
    wait_on: Callable[[int], subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    wait_on(1)
    another = tmp_path / "another"
    another.touch(mode=0o600)
    another.write_text(secrets.token_hex(32))

    finished = ringrun.run(JOIN, "-H", "node1:1", *options_of(another), size=None)

    assert finished.returncode == 1
    assert "the agent at node1:4712: it does not take the call" in finished.verdict
