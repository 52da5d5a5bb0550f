"""One rank that reduces by ring_keras over an MPI and by that MPI itself, in turn.

`beside_mpi_rank.py CASES`; CASES is a JSON list of [name, bytes, rounds]. Rank 0
prints one JSON object: for each case the seconds of every round, ours and theirs, of
the slower rank.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from ring_keras import _native
from ring_keras.config import Config
from ring_keras.schedulers import store_options

# So often can ones be summed in place before a float32 has no room.
LARGEST = 1e30


def main() -> None:
    """Times all cases."""
    config = Config.from_environment()
    _native.init(**config.init_options() | store_options(config))
    world = MPI.COMM_WORLD
    rank, size, *_ = _native.topology()
    reached = [_native.transport_to(peer) for peer in range(size) if peer != rank]
    assert reached == ["mpi"] * (size - 1), reached
    results = {}
    for name, nbytes, rounds in json.loads(sys.argv[1]):
        arrays = [np.ones(nbytes // 4, np.float32) for _ in "ab"]

        def ours(array: np.ndarray = arrays[0], name: str = name) -> None:
            _native.allreduce(array, "sum", name, out=array)

        def theirs(array: np.ndarray = arrays[1]) -> None:
            world.Allreduce(MPI.IN_PLACE, array)

        ways: list[tuple[Callable[[], None], Callable[[], None]]] = [
            (ours, _native.barrier),
            (theirs, world.Barrier),
        ]
        seconds: list[list[float]] = [[], []]
        for turn in range(-max(2, rounds // 10), rounds):
            for which in (0, 1) if turn % 2 else (1, 0):
                reduce, barrier = ways[which]
                array = arrays[which]
                barrier()
                before = float(array[0])
                start = time.perf_counter()
                reduce()
                took = time.perf_counter() - start
                if turn >= 0:
                    seconds[which].append(took)
                if not (array[:: max(1, len(array) // 1000)] == before * size).all():
                    raise AssertionError(f"{name}: {array} is not the sum")
                if before > LARGEST:
                    array.fill(1)
        for one in seconds:
            of_all = np.array(one)
            world.Allreduce(MPI.IN_PLACE, of_all, MPI.MAX)
            one[:] = of_all.tolist()
        results[name] = seconds
    if rank == 0:
        print(json.dumps(results), flush=True)
    _native.shutdown("the benchmark ended")


if __name__ == "__main__":
    main()
