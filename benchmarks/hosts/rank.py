"""One rank of ours: times allreduces of numpy arrays.

Reads its place from the environment, as under `ringrun`. Prints, on rank 0, one
JSON object: the median and the extremes of each case, in seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np


def main() -> None:
    """Times the cases of the one argument, a JSON list of [name, bytes, rounds]."""
    import ring_keras as ring
    from ring_keras import _native

    ring.init()
    results = {}
    for case, nbytes, rounds, compression in json.loads(sys.argv[1]):
        data = np.full(nbytes // 4, ring.rank() + 1, np.float32)
        options = {} if compression is None else {"wire_dtype": compression}
        warm = max(2, rounds // 10)
        seconds = []
        for turn in range(warm + rounds):
            _native.barrier("start") if nbytes >= 1 << 20 else None
            start = time.perf_counter()
            total = _native.allreduce(data, "sum", case, **options)
            if turn >= warm:
                seconds.append(time.perf_counter() - start)
        expected = ring.size() * (ring.size() + 1) / 2
        assert total.min() == total.max() == expected, (total.min(), total.max())
        results[case] = [statistics.median(seconds), min(seconds), max(seconds)]
    if ring.rank() == 0:
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
