"""Runs one rank: python -m benchmarks.ranks MODULE SOCKET CORES."""

import importlib
import os
import sys

# What each launcher calls a rank and the number of ranks.
_LAUNCHERS = (
    ("BENCHMARK_RANK", "BENCHMARK_SIZE"),
    ("RING_KERAS_RANK", "RING_KERAS_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def main() -> None:
    module_name, socket_path, cores = sys.argv[1:]
    rank, size = next(
        (int(os.environ[rank]), int(os.environ[size]))
        for rank, size in _LAUNCHERS
        if rank in os.environ
    )
    if cores != "any":
        # Before any library starts threads, which take their cores from here.
        allowed = [int(core) for core in cores.split(",")]
        os.sched_setaffinity(0, {allowed[rank % len(allowed)]})
    os.environ["OMP_NUM_THREADS"] = "1"
    module = importlib.import_module(f"benchmarks.ranks.{module_name}")
    module.serve(socket_path, rank, size)


main()
