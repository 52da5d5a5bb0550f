"""Whatever dies, the host is named, and no process is left on any."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import wait_until
from support.ringrun import Finished, Ringrun
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts

# Each rank leaves a child in a session of its own, which only a guard finds.
PARENT = """
subprocess.Popen(["sleep", "600"], start_new_session=True)
"""
JOIN = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None  # Or errors would be made of its, in seconds.
_native.init(**Config.from_environment().init_options())
"""
# Until the fault ends it.
TRAIN = """
step = 0
while True:
    _native.allreduce(np.ones(30000, np.float32), name=f"gradient{step % 3}")
    step += 1
    if step == 20: note(f"ready{rank}", os.getpid())
"""
# Where ranks are when the fault comes.
STAGES = {
    "before init": PARENT + 'note(f"ready{rank}", os.getpid())\nwait_to_be_ended()\n',
    "in init": PARENT
    + 'note(f"ready{rank}", os.getpid())\n'
    + "if rank == 0: wait_to_be_ended()\n"
    + JOIN,
    "in training": PARENT + JOIN + TRAIN,
}
OPTIONS = ["--grace-period", "2"]


def start(ringrun: Ringrun, hosts: SshHosts, stage: str) -> subprocess.Popen[bytes]:
    process = ringrun.start(
        STAGES[stage],
        *("-H", "node0:1,node1:2", "--ssh-args", hosts.ssh_args, *OPTIONS),
        size=None,
    )
    for rank in range(3):
        ringrun.noted(f"ready{rank}")
    return process


def lines_of_own(finished: Finished) -> str:
    lines = finished.stderr.decode().splitlines()
    return "\n".join(line for line in lines if line.startswith("ringrun: "))


@pytest.mark.parametrize(
    ("which", "stage"),
    [("front", "in training"), *(("agent", stage) for stage in STAGES)],
)
def test_an_agent_is_killed(
    ringrun: Ringrun, hosts: SshHosts, which: str, stage: str
) -> None:
    process = start(ringrun, hosts, stage)
    front, agent = hosts.find(1, "ring_keras.launch.agent")

    os.kill(front if which == "front" else agent, signal.SIGKILL)

    finished = ringrun.finish(process)
    assert finished.returncode == 1
    assert re.search(
        "host node1 was lost: .*its agent was killed.*; the other ranks ",
        finished.verdict,
    )
    hosts.wait_until_empty()


@pytest.mark.parametrize("which", ["front", "launcher", "both"])
def test_the_launcher_is_killed(ringrun: Ringrun, hosts: SshHosts, which: str) -> None:
    process = start(ringrun, hosts, "in training")
    (launcher,) = (
        pid for pid in hosts.find(0, "-m ring_keras.launch -H") if pid != process.pid
    )

    for pid, name in ((launcher, "launcher"), (process.pid, "front")):
        if which in (name, "both"):
            os.kill(pid, signal.SIGKILL)

    finished = ringrun.finish(process)
    assert finished.returncode == (137 if which == "launcher" else -9)
    hosts.wait_until_empty()


def test_a_rank_is_killed(ringrun: Ringrun, hosts: SshHosts) -> None:
    process = start(ringrun, hosts, "in training")
    (pid,) = ringrun.pids("ready2")

    os.kill(pid, signal.SIGKILL)

    finished = ringrun.finish(process)
    assert finished.returncode == 137
    assert f"rank 2 (host node1, pid {pid}) was killed by SIGKILL" in finished.verdict
    hosts.wait_until_empty()


def test_a_hosts_link_is_cut(hosts: SshHosts, tmp_path: Path) -> None:
    jobs = []
    for stage in STAGES:
        directory = tmp_path / stage.replace(" ", "_")
        directory.mkdir()
        ringrun = Ringrun(directory, hosts.on(0))
        jobs.append((ringrun, start(ringrun, hosts, stage)))

    hosts.set_link(1, "down")

    for ringrun, process in jobs:
        finished = ringrun.finish(process)
        assert finished.returncode == 1
        assert "host node1 was lost: " in finished.verdict
    hosts.wait_until_empty()


def test_every_host_that_cannot_be_used_is_named(
    ringrun: Ringrun, hosts: SshHosts
) -> None:
    finished = ringrun.run(
        'note("started")',
        *("-H", "10.223.7.99:1,node1:1,nowhere:1", "--ssh-args", hosts.ssh_args),
        size=None,
    )

    assert finished.returncode == 1
    own = lines_of_own(finished)
    assert re.search(r"host 10.223.7.99: ssh cannot reach it: .*No route to host", own)
    assert re.search(r"host nowhere: ssh cannot reach it: .*resolve hostname", own)
    assert "host node1: " not in own
    assert not (ringrun.directory / "started").exists()
    hosts.wait_until_empty()


def python_that(directory: Path, text: str) -> str:
    """An interpreter on another host, with something different about it."""
    script = directory / "python"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("echo oops >&2; exit 3", "its agent ended with code 3 at once: oops"),
        (
            'exec /usr/bin/python3 -I -S "$@"',
            "has no ring_keras there .*No module named",
        ),
        (None, "cannot run /no/such/python .*--remote-python says"),
        (
            f'PYTHONPATH="$(dirname "$0")" exec {sys.executable} "$@"',
            "has ring_keras 0.0.1, and this host has .*: install the same",
        ),
        (
            "head -c 100000 /dev/zero; exec cat >/dev/null",
            "something else than an agent answers",
        ),
    ],
)
def test_a_host_without_the_same_ring_keras_is_named(
    ringrun: Ringrun, hosts: SshHosts, tmp_path: Path, python: str | None, message: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import ring_keras._version as v\nv.__version__ = '0.0.1'\n"
    )
    path = "/no/such/python" if python is None else python_that(tmp_path, python)

    finished = ringrun.run(
        'note("started")',
        *("-H", "node1:1", "--ssh-args", hosts.ssh_args, "--remote-python", path),
        size=1,
    )

    assert finished.returncode == 1
    assert re.search(f"host node1: .*{message}", lines_of_own(finished))
    assert not (ringrun.directory / "started").exists()
    hosts.wait_until_empty()


def test_what_a_login_shell_prints_is_skipped(
    ringrun: Ringrun, hosts: SshHosts, tmp_path: Path
) -> None:
    python = python_that(tmp_path, f'echo Welcome; exec {sys.executable} "$@"')

    finished = ringrun.run(
        "print(rank)",
        *("-H", "node1:1", "--ssh-args", hosts.ssh_args, "--remote-python", python),
        size=1,
    )

    assert (finished.returncode, finished.stdout) == (0, b"[0] 0\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-command"], "host node1: no-such-command: no such command"),
        (["-x", "PATH=/nowhere", "true"], "host node1: true: no such command"),
    ],
)
def test_a_command_that_a_host_lacks(
    ringrun: Ringrun, hosts: SshHosts, command: list[str], message: str
) -> None:
    options = ["-H", "node1:1", "--ssh-args", hosts.ssh_args]

    finished = ringrun.finish(ringrun.start_raw(*options, *command))

    assert finished.returncode == 1
    assert message in finished.verdict
    hosts.wait_until_empty()


def test_an_interrupt_while_hosts_are_started(
    ringrun: Ringrun, hosts: SshHosts, tmp_path: Path
) -> None:
    python = python_that(tmp_path, f"touch {tmp_path}/asked; exec sleep 600")
    process = ringrun.start(
        'note("started")',
        *("-H", "node1:1", "--ssh-args", hosts.ssh_args, "--remote-python", python),
        size=1,
    )
    wait_until((tmp_path / "asked").exists, "the agent was to be started")

    process.send_signal(signal.SIGTERM)

    finished = ringrun.finish(process)
    assert finished.returncode == 143
    assert finished.verdict == "ringrun: stopped by SIGTERM"
    # An agent would have seen the end of its input; this is none.
    assert [
        pid for pid in hosts.leftovers(1) if pid not in hosts.find(1, "sleep")
    ] == []
