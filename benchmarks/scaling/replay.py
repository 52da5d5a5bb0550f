"""One rank that replays training steps: it sleeps for backward, and communicates.

As where an accelerator computes: the cores have nothing to do but to reduce.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from ring_keras import _native
from ring_keras.benchmark.job import join

_STEPS = 3


def main() -> None:
    """Argument: a JSON object, and the file for the median step's seconds."""
    task = json.loads(sys.argv[1])
    rank, _ = join(tensorflow=False)
    buckets = [
        (ready_s, np.ones(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32))
        for ready_s, nbytes in task["buckets"]
    ]
    own = []
    for _ in range(1 + _STEPS):
        _native.barrier("replay/start")
        start = time.perf_counter()
        for number, (ready_s, gradients, out) in enumerate(buckets):
            time.sleep(max(0.0, start + ready_s - time.perf_counter()))
            _native.allreduce(gradients, "average", f"replay/{number}", out=out)
        time.sleep(max(0.0, start + task["alone_s"] - time.perf_counter()))
        own.append(time.perf_counter() - start)
    slowest = _native.allreduce(np.array(own[1:]), "max", "replay/steps")
    if rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(float(np.median(slowest))))
    _native.barrier("replay/end")
    _native.shutdown("the replay ended")


if __name__ == "__main__":
    main()
