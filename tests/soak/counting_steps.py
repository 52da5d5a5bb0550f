"""What `memberships.py` runs as each rank: steps that add up, each written down.

Its argument is a directory. It ends once there is a file `stop`. It imports no library
that computes, which takes more processor time than all else of a job.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

# Nothing of JAX is used either, and so it is not imported.
os.environ["KERAS_BACKEND"] = "jax"

import ring_keras as ring
from ring_keras.job.job import current_job


def main() -> None:
    """Counts until told to stop."""
    directory = Path(sys.argv[1])
    number = os.environ["RING_KERAS_RANK"]
    (directory / f"pid.{number}").write_text(str(os.getpid()))
    file = (directory / f"steps.{number}").open("w", buffering=1)
    ring.init()
    state: Any = ring.elastic.ObjectState(total=0, step=0, stops=False)

    @ring.elastic.run
    def train(state: Any) -> None:
        while not state.stops:
            state.total += sum(ring.allgather_object(1, name="one")) // ring.size()
            stops = (directory / "stop").exists()
            state.stops = any(ring.allgather_object(stops, name="stop"))
            state.step += 1
            assert state.total == state.step, "steps are lost"
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
