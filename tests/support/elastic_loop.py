"""A loop that goes on with other ranks, and notes with which."""

from __future__ import annotations

from pathlib import Path

from support.processes import wait_until

# Each step adds 1, which is the average of what the ranks give: so the total is the
# number of steps that were applied. It ends once there is a file "stop".
LOOP = """
import socket
import tensorflow as tf
import ring_keras as ring

number = rank
ring.init()
total = tf.Variable(0.0)
state = ring.elastic.TensorFlowState([total], step=0, sizes=[], stop=0.0)
note(f"host.{number}", socket.gethostname())
note(f"pid.{number}", os.getpid())

@ring.elastic.run
def train(state):
    while state.stop == 0:
        if state.sizes[-1:] != [ring.size()]:
            state.sizes = [*state.sizes, ring.size()]
        total.assign_add(ring.allreduce(tf.constant(1.0), name="one"))
        stops = tf.constant(float((here / "stop").exists()))
        state.stop = float(ring.allreduce(stops, name="stop"))
        state.step += 1
        state.commit()
        note(f"sizes.{number}", state.sizes)
        time.sleep(0.01)

train(state)
assert float(total) == state.step
note(f"end.{number}", os.getpid())
"""


def await_sizes(directory: Path, number: int, *sizes: str, timeout_s: int = 30) -> None:
    """Until a process has been in generations of these sizes."""
    path = directory / f"sizes.{number}"
    wait_until(
        lambda: path.exists() and path.read_text() in sizes,
        f"process {number} has seen {sizes}",
        timeout_s,
    )
