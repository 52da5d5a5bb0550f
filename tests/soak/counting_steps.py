"""What `memberships.py` runs as each rank: steps that add up, each written down.

Its argument is a directory. It ends once there is a file `stop`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import tensorflow as tf

import ring_keras as ring
from ring_keras.job.job import current_job


def main() -> None:
    """Counts until told to stop."""
    directory = Path(sys.argv[1])
    number = os.environ["RING_KERAS_RANK"]
    (directory / f"pid.{number}").write_text(str(os.getpid()))
    file = (directory / f"steps.{number}").open("w", buffering=1)
    ring.init()
    total = tf.Variable(0.0)
    state = ring.elastic.TensorFlowState([total], step=0, stop=0.0)

    @ring.elastic.run
    def train(state: ring.elastic.TensorFlowState) -> None:
        while state.stop == 0:
            total.assign_add(ring.allreduce(tf.constant(1.0), name="one"))
            stops = tf.constant(float((directory / "stop").exists()))
            state.stop = float(ring.allreduce(stops, name="stop"))
            state.step += 1
            assert int(total) == state.step, "steps are lost"
            state.commit()
            file.write(
                f"{time.monotonic()} {current_job().generation} {ring.rank()} "
                f"{ring.size()} {state.step} -\n"
            )
            time.sleep(0.02)

    train(state)
    (directory / f"end.{number}").write_text(str(state.step))


if __name__ == "__main__":
    main()
