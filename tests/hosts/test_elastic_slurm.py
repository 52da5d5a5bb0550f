"""Elastic jobs within a job of Slurm's, whose nodes it may lose."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from soak.history import Process
from support.elastic_loop import LOOP, await_sizes
from support.job import TESTS_DIR
from support.processes import wait_until
from support.ringrun import PROLOGUE
from support.slurm import Slurm
from support.slurm_jobs import REQUEUES, Jobs

pytestmark = pytest.mark.hosts

RINGRUN = f"{sys.executable} -m ring_keras.launch --grace-period 2"


@pytest.fixture
def jobs(slurm_of_all: Slurm, tmp_path: Path) -> Iterator[Jobs]:
    yield Jobs(slurm_of_all, tmp_path, PROLOGUE)
    slurm_of_all.hosts.set_link(1, "up")
    slurm_of_all.take_back("node1")
    slurm_of_all.cancel_all()


def noted(jobs: Jobs, name: str) -> str:
    return (jobs.directory / name).read_text()


def finish(jobs: Jobs) -> str:
    """Has the ranks end; what the batch script has printed."""
    (jobs.directory / "stop").touch()
    wait_until(lambda: "ended with" in noted(jobs, "output"), "ringrun has ended", 60)
    jobs.wait_until_none_is_left()
    return noted(jobs, "output")


# Slurm ends a job that loses a node, unless it is told not to, by --no-kill.
@pytest.mark.parametrize("victim", ["a rank", "an agent", "a link", "a node"])
def test_ringrun_in_a_job_goes_on_without_what_is_lost(jobs: Jobs, victim: str) -> None:
    python = " ".join(jobs.script(LOOP))
    ringrun = f"{RINGRUN} -np 2 --min-np 1 --max-np 2 {python}"
    jobs.submit(
        f"{ringrun}\necho ended with $?\n",
        *("--nodes=3", "--ntasks-per-node=1", "--no-kill"),
    )
    await_sizes(jobs.directory, 0, "[2]", timeout_s=60)
    before = int(noted(jobs, "pid.0"))

    if victim == "a rank":
        os.kill(int(noted(jobs, "pid.1")), signal.SIGKILL)
    elif victim == "an agent":
        os.kill(jobs.slurm.hosts.find(1, "ring_keras.launch.agent")[-1], signal.SIGKILL)
    elif victim == "a link":
        jobs.slurm.hosts.set_link(1, "down")
    else:
        down = "State=DOWN", "Reason=test"
        jobs.run("scontrol", "update", "NodeName=node1", *down)

    await_sizes(jobs.directory, 0, "[2, 1, 2]", timeout_s=60)
    await_sizes(jobs.directory, 2, "[2, 1, 2]")
    said = finish(jobs)
    assert "ended with 0" in said, said
    assert int(noted(jobs, "end.0")) == before
    assert noted(jobs, "host.2") == "node2"


TRAINING = TESTS_DIR / "soak" / "slurm_training.py"


def test_a_job_whose_ringrun_is_killed_comes_back_and_goes_on(jobs: Jobs) -> None:
    parts = jobs.directory / "checkpoints"
    run = f"{jobs.directory}/run.${{SLURM_RESTART_COUNT:-0}}"
    training = f"{sys.executable} {TRAINING} {run} 4 0.02 1 {parts}"
    jobs.submit(
        f"{RINGRUN} -np 2 --min-np 1 --max-np 2 {training}\n"
        + REQUEUES.replace("exit", "echo ended with $code; exit"),
        *("--nodes=3", "--ntasks-per-node=1", "--no-kill", "--requeue"),
        "--open-mode=append",
    )
    complete = "run-0001-step-000000000060.*.json"
    wait_until(lambda: len(list(parts.glob(complete))) == 2, "a checkpoint", 90)
    os.kill(jobs.slurm.hosts.find(0, "ring_keras.launch")[0], signal.SIGKILL)

    said = "output"
    wait_until(lambda: "ended with 0" in noted(jobs, said), "a second run ends", 150)
    assert noted(jobs, said).count("ended with 137") == 1
    jobs.wait_until_none_is_left()
    process = Process(jobs.directory / "run.1" / "steps.0")
    process.read()
    assert process.steps[0].number > 60
    # Four epochs: of each, no example was trained on twice, and none was left out.
    for rank in (0, 1):
        ended = noted(jobs, f"run.1/end.{rank}").split()
        assert ended[:3] == ["4", "4", "0"]


# Ranks of srun's, of which one is lost.
ALONE = """
import os, signal
import ring_keras as ring

ring.init()

@ring.elastic.run
def train(state):
    if ring.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ring.barrier(name="one")

train(ring.elastic.ObjectState(step=0))
"""


def test_srun_alone_ends_and_says_what_goes_on(jobs: Jobs) -> None:
    file = jobs.directory / "alone.py"
    file.write_text(ALONE)
    srun = ["srun", "--nodes=2", "--ntasks=3", "--overcommit", "--kill-on-bad-exit=0"]
    finished = jobs.run(*srun, sys.executable, str(file))

    assert finished.returncode != 0
    said = "elastic.run does nothing, and all ranks end when one is lost: Slurm started"
    assert finished.stderr.count(said) == 1, finished.stderr
    assert finished.stderr.count("errors.PeerLostError: ") == 2, finished.stderr
    jobs.wait_until_none_is_left()
