"""One rank that times every algorithm in turn, so that all have the same weather."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from ring_keras import _native
from ring_keras.benchmark.job import join


def main() -> None:
    """Argument: a JSON object, and the file for the median seconds of each."""
    task = json.loads(sys.argv[1])
    rank, size = join(tensorflow=False)
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(task["rounds"]):
        for nbytes in task["sizes"]:
            data = np.ones(nbytes // 4, np.float32)
            out = np.empty_like(data)
            for algorithm, thresholds in task["thresholds"].items():
                _native.set_tuning(thresholds)
                # The first one opens the connection's window.
                for _ in range(2):
                    _native.barrier("in_one_job/start")
                    start = time.perf_counter()
                    _native.allreduce(data, "sum", f"in_one_job/{nbytes}", out=out)
                    own_s = time.perf_counter() - start
                slowest = _native.allreduce(np.array([own_s]), "max", "in_one_job/time")
                times.setdefault((algorithm, nbytes), []).append(float(slowest[0]))
                if not (out == size).all():
                    raise AssertionError(f"{algorithm} of {nbytes} bytes is wrong")
    if rank == 0:
        rows = [
            {
                "algorithm": algorithm,
                "nbytes": nbytes,
                "median_s": statistics.median(of_one),
            }
            for (algorithm, nbytes), of_one in times.items()
        ]
        Path(sys.argv[2]).write_text(json.dumps(rows))
    _native.barrier("in_one_job/end")
    _native.shutdown("all has been measured")


if __name__ == "__main__":
    main()
