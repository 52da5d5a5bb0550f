"""Elastic jobs on several hosts: ranks, and whole hosts, are lost and replaced."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from support.ringrun import Ringrun
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.hosts

# Each step adds 1, which is the average of what the ranks give: so the total is the
# number of steps that were applied. It ends 20 steps after the ranks have been `SIZES`.
LOOP = """
import socket
import tensorflow as tf
import ring_keras as ring

number = rank
ring.init()
total = tf.Variable(0.0)
state = ring.elastic.TensorFlowState([total], step=0, sizes=[], last=None)
note(f"pid.{number}", os.getpid())
note(f"host.{number}", socket.gethostname())

@ring.elastic.run
def train(state):
    while state.last is None or state.step < state.last:
        if state.sizes[-1:] != [ring.size()]:
            state.sizes = [*state.sizes, ring.size()]
            if len(state.sizes) == int(os.environ["SIZES"]):
                state.last = state.step + 20
        total.assign_add(ring.allreduce(tf.constant(1.0), name="one"))
        state.step += 1
        state.commit()
        if state.step == 5:
            note(f"running.{number}")
        time.sleep(0.01)

train(state)
assert float(total) == state.step
note(f"end.{number}", f"{os.getpid()} {state.sizes}")
"""


def start(
    ringrun: Ringrun, hosts: SshHosts, where: str, sizes: int, *options: str, size: int
) -> subprocess.Popen[bytes]:
    cooldown = ["--blacklist-cooldown-range", "0", "0"] if "--max-np" in options else []
    process = ringrun.start(
        LOOP,
        *("-H", where, "--ssh-args", hosts.ssh_args, "--grace-period", "2"),
        *cooldown,
        *options,
        size=size,
        env={"SIZES": str(sizes)},
    )
    for number in range(size):
        ringrun.noted(f"running.{number}")
    return process


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_rank_of_another_host_is_replaced_there(
    ringrun: Ringrun, hosts: SshHosts, encrypted: bool
) -> None:
    options = ["--min-np", "1", "--max-np", "2", *["--encrypt"] * encrypted]
    job = start(ringrun, hosts, "node0:1,node1:1", 3, *options, size=2)
    before = ringrun.pids("pid.0", "pid.1")

    os.kill(before[1], signal.SIGKILL)

    finished = ringrun.finish(job, timeout_s=90)
    assert finished.returncode == 0, finished.stderr.decode()
    assert ringrun.noted("end.0") == f"{before[0]} [2, 1, 2]"
    assert ringrun.noted("host.2") == "node1"
    assert ringrun.noted("end.2").endswith("[2, 1, 2]")
    hosts.wait_until_empty()


@pytest.mark.parametrize("how", ["its agent is killed", "its link is cut"])
def test_a_lost_host_is_replaced_by_one_with_free_slots(
    ringrun: Ringrun, hosts: SshHosts, how: str
) -> None:
    options = ["--min-np", "1", "--max-np", "2"]
    job = start(ringrun, hosts, "node0:1,node1:1,node2:1", 3, *options, size=2)
    before = ringrun.pids("pid.0", "pid.1")

    if how == "its link is cut":
        hosts.set_link(1, "down")
    else:
        os.kill(hosts.find(1, "ring_keras.launch.agent")[-1], signal.SIGKILL)

    finished = ringrun.finish(job, timeout_s=120)
    assert finished.returncode == 0, finished.stderr.decode()
    assert ringrun.noted("end.0") == f"{before[0]} [2, 1, 2]"
    assert ringrun.noted("host.2") == "node2"
    assert "process 1 (rank 1, host node1, pid" in finished.stderr.decode()
    hosts.wait_until_empty(60)


def test_a_lost_host_that_leaves_too_few_ends_the_job(
    ringrun: Ringrun, hosts: SshHosts
) -> None:
    job = start(ringrun, hosts, "node0:1,node1:1", 9, "--min-np", "2", size=2)

    os.kill(hosts.find(1, "ring_keras.launch.agent")[-1], signal.SIGKILL)

    finished = ringrun.finish(job, timeout_s=90)
    assert finished.returncode == 75
    assert "fewer than --min-np 2 ranks are left (1)" in finished.verdict
    assert "host node1 was lost" in finished.verdict
    hosts.wait_until_empty()
