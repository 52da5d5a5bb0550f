"""Workers that use all that a transport must carry, without TensorFlow."""

from __future__ import annotations

import numpy as np

from ring_keras import _native
from support.engine_only import join


def every_collective() -> list[str]:
    """Over several sizes; what reaches each rank."""
    rank, size = join()
    # Nothing, what rides in posts, what goes in pieces whose length the data decide,
    # and in longer data.
    wide = [(200_001, np.float64)]
    counts = (0, 1, 1_000, 100_000, 250_001, 375_001, 3_000_001)
    for count, dtype in [*((count, np.float32) for count in counts), *wide]:
        for use in range(3):
            own = np.arange(count, dtype=dtype) % 61 + rank + use
            total = sum(np.arange(count) % 61 + other + use for other in range(size))
            summed = _native.allreduce(own, "sum", f"sum {count}")
            np.testing.assert_array_equal(summed, total)
            part = _native.reduce_scatter(own, "sum", f"scatter {count}")
            np.testing.assert_array_equal(part, np.array_split(total, size)[rank])
            sent = _native.broadcast(own, 1, f"root {count}")
            np.testing.assert_array_equal(sent, own - rank + 1)
    rows = _native.allgather(np.full((rank + 1, 2), rank, np.int32), "rows")
    assert rows[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]
    splits = [to + 1 for to in range(size)]
    got, came = _native.alltoall(np.full(sum(splits), rank), splits, "all to all")
    assert came.tolist() == [rank + 1] * size
    assert got.tolist() == np.repeat(np.arange(size), rank + 1).tolist()
    _native.barrier()
    return [_native.transport_to(other) for other in range(size)]


def join_twice() -> list[float]:
    """A sum in each of two memberships."""
    join()
    sums = []
    for use in range(2):
        sums.append(float(_native.allreduce(np.ones(9, np.float32), "sum")[0]))
        if use == 0:
            _native.shutdown("to join once more")
            join()
    return sums
