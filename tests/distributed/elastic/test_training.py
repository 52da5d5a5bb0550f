"""Loops that go on while real processes are killed."""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest
from support.ringrun import Ringrun

# Each step adds 1 to a variable: the average of what the ranks, whose shares of 2**20
# are exact, give. So its value is the number of steps that were applied.
_LOOP = """
import hashlib
import numpy as np, tensorflow as tf
import ring_keras as ring

number, resets = rank, []
ring.init()
total = tf.Variable(0.0)
weights = tf.Variable(np.random.default_rng(number).normal(size=1000))
state = ring.elastic.TensorFlowState([total, weights], step=0, sizes=[], last=None)
state.register_reset_callbacks([lambda: resets.append(ring.size())])
note(f"pid.{number}", os.getpid())

@ring.elastic.run
def train(state):
    @tf.function
    def step():
        total.assign_add(ring.allreduce(tf.constant(1.0), name="one"))
        noise = tf.random.normal([1000], dtype=tf.float64)
        weights.assign_add(ring.allreduce(noise, name="noise"))

    while state.last is None or state.step < state.last:
        if state.sizes[-1:] != [ring.size()]:
            state.sizes = [*state.sizes, ring.size()]
            if len(state.sizes) == 3:
                state.last = state.step + 20
        step()
        state.step += 1
        state.commit()
        if state.step == 5:
            note(f"running.{number}")
        time.sleep(0.01)

train(state)
digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
assert ring.allgather_object(digest) == [digest] * ring.size()
applied = f"{state.step} {float(total)}"
note(f"end.{number}", f"{os.getpid()} {applied} {state.sizes} {resets}")
"""


@pytest.mark.slow
def test_a_lost_rank_0_is_replaced_and_no_step_is_lost(ringrun: Ringrun) -> None:
    log = ringrun.directory / "events.jsonl"
    options = ["--min-np", "1", "--max-np", "2", "--event-log", str(log)]
    job = ringrun.start(_LOOP, *options, "--blacklist-cooldown-range", "0", "0", size=2)
    for number in (0, 1):
        ringrun.noted(f"running.{number}")
    pids = ringrun.pids("pid.0", "pid.1")

    os.kill(pids[0], signal.SIGKILL)

    finished = ringrun.finish(job)
    assert finished.returncode == 0, finished.stderr.decode()
    survivor, steps, total, *rest = ringrun.noted("end.1").split(maxsplit=3)
    assert int(survivor) == pids[1]
    assert float(total) == int(steps)
    assert rest == ["[2, 1, 2] [1, 2]"]
    _, others_steps, others_total, *rest = ringrun.noted("end.2").split(maxsplit=3)
    assert (others_steps, others_total) == (steps, total)
    assert rest == ["[2, 1, 2] []"]
    events = [json.loads(line) for line in log.read_text().splitlines()]
    host = f"(host {socket.gethostname()})"
    said = [(event["rank"], event["text"]) for event in events]
    assert said[:3] == [
        (None, f"process 0 {host} was started"),
        (None, f"process 1 {host} was started"),
        (None, "2 ranks train: processes 0, 1"),
    ]
    lost, how = said[3]
    assert lost == 0
    assert how.startswith(f"rank 0 {host} was killed by SIGKILL")
    assert (None, f"process 2 {host} was started") in said
    assert (None, "1 rank trains: processes 1") in said
    assert (None, "2 ranks train: processes 1, 2") in said


_COMES_TOO_LATE = """
if rank == 1:
    from ring_keras.config import Config
    from ring_keras.lifecycle.elastic_launcher import launcher_of

    wait_for("ready")
    launcher_of(Config.from_environment()).join()  # The other waits for it in vain.
    wait_to_be_ended()
import ring_keras as ring
from ring_keras import _libraries
_libraries.ops()
note("ready")
ring.init()
note(f"end.{rank}", ring.size())
"""


@pytest.mark.slow
def test_an_init_that_waits_too_long_for_a_rank_begins_again(ringrun: Ringrun) -> None:
    options = ["--min-np", "1", "--start-timeout", "1", "--elastic-timeout", "5"]

    finished = ringrun.finish(ringrun.start(_COMES_TOO_LATE, *options, size=2))

    assert finished.returncode == 0, finished.stderr.decode()
    assert b"it has not joined within --elastic-timeout 5 s" in finished.stderr
    assert ringrun.noted("end.0") == "1"


_LOST_IN_RESET = """
import ring_keras as ring

ring.init()
state, sizes = ring.elastic.ObjectState(step=0), []

def reset():
    sizes.append(ring.size())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ring.allgather_object(rank)

state.register_reset_callbacks([reset])

@ring.elastic.run
def train(state):
    while ring.size() > 1:
        if rank == 2 and state.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        ring.allgather_object(rank)
        state.step += 1
        state.commit()

train(state)
note(f"end.{rank}", f"{state.step} {sizes}")
"""


@pytest.mark.slow
def test_a_rank_may_be_lost_while_reset_callbacks_run(ringrun: Ringrun) -> None:
    finished = ringrun.finish(ringrun.start(_LOST_IN_RESET, "--min-np", "1", size=3))

    assert finished.returncode == 0, finished.stderr.decode()
    assert ringrun.noted("end.0") == "3 [2, 1]"
