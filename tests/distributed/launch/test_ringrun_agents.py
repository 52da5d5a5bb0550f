"""Agents without sshd: in place of ssh, something that stays on this host."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from support import elastic_ranks, trips
from support.processes import wait_until, wait_until_dead
from support.ringrun import Ringrun
from support.terminal import REPORT, Terminal

# Takes what ssh takes, runs the command as a login shell would, and passes on how it
# ended, as ssh does.
SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
exec sh -c "$3"
"""
JOIN = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
sys.modules["tensorflow"] = None  # Or errors would be made of its, in seconds.
_native.init(**Config.from_environment().init_options())
"""
HANG = """
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
note(f"child{rank}", child.pid)
note(f"agent{rank}", os.getppid())
note(f"pid{rank}", os.getpid())
while True:
    _native.allreduce(np.ones(30000, np.float32), name="gradient")
"""
# Names that no resolver knows.
HOSTS = ["-H", "first.invalid:1,second.invalid:2", "--launcher-address", "127.0.0.1"]


@pytest.fixture
def start(ringrun: Ringrun, tmp_path: Path):
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    path = {"PATH": f"{ssh.parent}:{os.environ['PATH']}"}

    def start(
        script: str, *options: str, env: Mapping[str, str] = path, **streams: int
    ) -> subprocess.Popen[bytes]:
        env = {**path, **env}
        return ringrun.start(script, *HOSTS, *options, size=None, env=env, **streams)

    return start


def test_ranks_of_agents_are_one_job(ringrun: Ringrun, start) -> None:
    script = JOIN + (
        "total = _native.allreduce(np.full(2, rank + 1, np.float32), name='x')\n"
        "print(os.environ['RING_KERAS_HOST_NAME'], _native.topology()[2:], total)\n"
        "print('to stderr', file=sys.stderr)\n"
        "_native.shutdown('done')\n"
        "sys.exit(7 if rank == 2 else 0)\n"
    )

    finished = ringrun.finish(start(script))

    assert finished.returncode == 7
    assert sorted(finished.stdout.decode().splitlines()) == [
        "[0] first.invalid (0, 1, 0, 2) [6. 6.]",
        "[1] second.invalid (0, 2, 1, 2) [6. 6.]",
        "[2] second.invalid (1, 2, 0, 1) [6. 6.]",
    ]
    for rank in range(3):
        assert f"[{rank}] to stderr" in finished.stderr.decode().splitlines()
    assert re.search(
        r"rank 2 \(host second.invalid, pid \d+\) exited with code 7", finished.verdict
    )


def test_ranks_of_agents_have_one_order_of_sets(ringrun: Ringrun, start) -> None:
    finished = ringrun.finish(start("print(hash('a text'))"))

    lines = finished.stdout.decode().splitlines()
    assert len(lines) == 3
    assert len({line[4:] for line in lines}) == 1


def test_agents_pass_on_what_ranks_report(
    ringrun: Ringrun, start, terminal: Terminal
) -> None:
    script = (
        REPORT
        + """
report(0, {})
report(10, {"1": 0.5} if rank == 0 else {})
wait_for("done")
"""
    )
    process = start(script, stdout=terminal.fd, stderr=terminal.fd)

    terminal.read_until(
        rb"3 ranks \| [^\r\x1b]*slowest: rank 1, [^|]* \| rank 1 is on second\.invalid"
    )
    (ringrun.directory / "done").touch()

    assert ringrun.finish(process).returncode == 0


WARNED = """
got = []
signal.signal(signal.SIGUSR1, lambda number, _frame: got.append(number))
note(f"agent{rank}", os.getppid())
wait_until(lambda: got, "the signal")
note(f"got{rank}")
wait_for("go")
"""


def test_a_warning_reaches_the_ranks_of_all_hosts(ringrun: Ringrun, start) -> None:
    process = start(WARNED)
    ringrun.pids("agent0", "agent1", "agent2")

    process.send_signal(signal.SIGUSR1)

    for rank in range(3):
        ringrun.noted(f"got{rank}")
    (ringrun.directory / "go").touch()
    assert ringrun.finish(process).returncode == 0


@pytest.mark.parametrize("in_slurm", [False, True])
def test_a_warning_to_an_agent_is_for_its_ranks(
    ringrun: Ringrun, start, in_slurm: bool
) -> None:
    """In a step, Slurm itself has told the ranks."""
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "1"} if in_slurm else {}
    process = start(WARNED, env=slurm)
    agents = ringrun.pids("agent0", "agent1", "agent2")

    os.kill(agents[1], signal.SIGUSR1)

    if not in_slurm:
        ringrun.noted("got1")
        ringrun.noted("got2")
        assert not (ringrun.directory / "got0").exists()
    process.send_signal(signal.SIGUSR1)
    ringrun.noted("got0")
    (ringrun.directory / "go").touch()
    assert ringrun.finish(process).returncode == 0


def test_ranks_that_obey_their_agent_are_not_done(ringrun: Ringrun, start) -> None:
    """All machines are taken away at once, and every script ends with code 0."""
    script = """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    note(f"agent{rank}", os.getppid())
    wait_to_be_ended()
    """
    process = start(script)
    agents = ringrun.pids("agent0", "agent1", "agent2")

    for agent in {agents[0], agents[1]}:
        os.kill(agent, signal.SIGTERM)

    finished = ringrun.finish(process)
    assert finished.returncode == 1
    assert re.search(
        r"\[RK804\] host \w+\.invalid was lost: the agent got SIGTERM",
        finished.verdict,
    )


@pytest.mark.parametrize("killed", ["agent1", "launcher"])
def test_nothing_is_left_of_an_agents_ranks(
    ringrun: Ringrun, start, killed: str
) -> None:
    process = start(JOIN + HANG, "--grace-period", "1")
    names = [f"{name}{rank}" for name in ("pid", "child", "agent") for rank in range(3)]
    pids = ringrun.pids(*names)

    if killed == "launcher":
        process.kill()
    else:
        os.kill(ringrun.pids(killed)[0], signal.SIGKILL)

    finished = ringrun.finish(process)
    if killed == "launcher":
        assert finished.returncode == -signal.SIGKILL
    else:
        assert finished.returncode == 1
        assert "host second.invalid was lost: its agent was killed" in finished.verdict
    wait_until_dead(pids, timeout_s=30)


def test_a_launch_enters_what_the_page_lists(ringrun: Ringrun, start, tmp_path) -> None:
    programs = ["ring_keras.launch", "ring_keras.launch.agent"]
    traced = trips.TripsOfPrograms(tmp_path, *programs)
    script = JOIN + "_native.shutdown('done')\n"

    finished = ringrun.finish(start(script, env=traced.env))

    assert finished.returncode == 0
    *here, there = trips.tables_of("One `ringrun -H a:2,b:2`")
    assert trips.differences(traced.files_of(programs[0]), here) == []
    assert trips.differences(traced.files_of(programs[1]), [there]) == []


def test_a_process_that_an_agent_cannot_start_ends_nobody(
    ringrun: Ringrun, start
) -> None:
    script = (
        f"{elastic_ranks.PROLOGUE}\nnote(f'agent.{{rank}}', os.getppid())\n"
        f"{elastic_ranks.GO_ON_UNTIL_ENOUGH}"
    )
    said, met = ringrun.directory / "stderr", ringrun.directory / "met.0"
    options = ["--min-np", "1", "--max-np", "3"]
    options += ["--blacklist-cooldown-range", "0.5", "10"]
    with said.open("wb") as file:
        job = start(script, *options, stderr=file.fileno())
    agent, lost = ringrun.pids("agent.2", "pid.2")
    wait_until(lambda: met.exists() and met.read_text() == "0 1 2", "they have met")
    limits = resource.prlimit(agent, resource.RLIMIT_NOFILE)

    resource.prlimit(agent, resource.RLIMIT_NOFILE, (3, limits[1]))
    os.kill(lost, signal.SIGKILL)
    failed = b"exited with code 1; it could not be started: [Errno 24]"
    wait_until(lambda: failed in said.read_bytes(), "one could not be started")
    resource.prlimit(agent, resource.RLIMIT_NOFILE, limits)
    wait_until(lambda: met.read_text().startswith("0 1 "), "another one is there")
    (ringrun.directory / "enough").touch()

    assert job.wait(60) == 0, said.read_text()
    assert b"elastic: going on with 2 ranks" in said.read_bytes()
