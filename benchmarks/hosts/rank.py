"""One rank of one contender: times allreduces of numpy arrays.

`rank.py CONTENDER CASES`; CASES is a JSON list of [name, bytes, rounds,
compression]. Rank 0 prints one JSON object: the seconds of every round of each
case.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

# Rank, number of ranks, barrier, and how to reduce an array under a name.
Contender = tuple[
    int, int, Callable[[], None], Callable[[np.ndarray, str, str | None], np.ndarray]
]


def ours() -> Contender:
    """ring_keras, through its Python binding."""
    import ring_keras as ring
    from ring_keras import _native

    ring.init()

    def reduce(data: np.ndarray, name: str, compression: str | None) -> np.ndarray:
        return _native.allreduce(data, "sum", name, wire_dtype=compression)

    return ring.rank(), ring.size(), _native.barrier, reduce


def mpi() -> Contender:
    """Any MPI, through mpi4py."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    totals: dict[str, np.ndarray] = {}

    def reduce(data: np.ndarray, name: str, _: str | None) -> np.ndarray:
        total = totals.setdefault(name, np.empty_like(data))
        world.Allreduce(data, total)
        return total

    return world.rank, world.size, world.Barrier, reduce


def gloo() -> Contender:
    """torch.distributed with gloo; reduces in place, so it is given a copy."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    totals: dict[str, torch.Tensor] = {}

    def reduce(data: np.ndarray, name: str, _: str | None) -> np.ndarray:
        total = totals.setdefault(name, torch.empty(len(data)))
        total.copy_(torch.from_numpy(data))
        dist.all_reduce(total)
        reduced: np.ndarray = total.numpy()
        return reduced

    return dist.get_rank(), dist.get_world_size(), dist.barrier, reduce


def main() -> None:
    """Times all cases."""
    rank, size, barrier, reduce = {"ours": ours, "mpi": mpi, "gloo": gloo}[
        sys.argv[1]
    ]()
    results = {}
    for name, nbytes, rounds, compression in json.loads(sys.argv[2]):
        data = np.full(nbytes // 4, rank + 1, np.float32)
        seconds = []
        for turn in range(-max(1, rounds // 10), rounds):
            if nbytes >= 1 << 20:
                barrier()
            start = time.perf_counter()
            total = reduce(data, name, compression)
            if turn >= 0:
                seconds.append(time.perf_counter() - start)
        if not (total == size * (size + 1) / 2).all():
            raise AssertionError(f"{name}: {total} is not the sum")
        results[name] = seconds
    barrier()
    if rank == 0:
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
