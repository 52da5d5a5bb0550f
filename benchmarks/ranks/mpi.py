"""MPI_Allreduce of numpy arrays in place, through mpi4py."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from benchmarks.ranks.agent import UnsupportedError, answer
from benchmarks.ranks.arrays import Array, array_operations

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (rank, size):
        raise RuntimeError(
            f"MPI must have rank {rank} of {size} here. "
            f"Received: rank {world.rank} of {world.size}"
        )
    version = MPI.Get_library_version().splitlines()[0].strip("\0 \t")
    answer(socket_path, rank, version, array_operations(rank, size, _prepare))


def _prepare(array: Array) -> Callable[[], object]:
    if array.dtype != np.float32:
        raise UnsupportedError  # MPI 4 has no 16-bit floats.
    buffer = [array, MPI.FLOAT]
    return functools.partial(MPI.COMM_WORLD.Allreduce, MPI.IN_PLACE, buffer)
