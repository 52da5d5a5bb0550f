"""No thread of the engine's needs Python."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
from support.engine_only import rank_and_size
from support.gpu_calls import gpu
from support.rank_pool import RankPools
from support.stand_in import stand_in_environment

# Its functions are called with the GIL held.
LIBC = ctypes.PyDLL(None)


def gather_while_python_is_held_up(pipes: tuple[str, str]) -> None:
    """Rank 1 waits in C for a byte that comes when all ranks have the result."""
    rank, _ = rank_and_size()
    held, ended = (os.open(pipe, os.O_RDWR) for pipe in pipes)
    byte = ctypes.create_string_buffer(1)
    for kind in ("allgather", "reduce_scatter", "alltoall"):
        call = getattr(gpu(), kind)
        call(np.zeros(4, np.float32)).results()  # Connects.
        array = np.full(4, rank + 1, np.float32)
        if rank == 0:
            os.read(held, 1)
            pending = call(array)
            try:
                pending.operation.wait()
            finally:
                os.write(ended, b".")
        else:
            pending = call(array)
            LIBC.write(held, byte, 1)
            LIBC.read(ended, byte, 1)
        result = pending.result
        expected = {
            "allgather": [1] * 4 + [2] * 4,
            "reduce_scatter": [3, 3],
            "alltoall": [1, 1, 2, 2],
        }
        np.testing.assert_array_equal(result, expected[kind])


def test_a_rank_whose_python_is_held_up_takes_part(
    rank_pool: RankPools, tmp_path: Path
) -> None:
    pipes = (str(tmp_path / "held"), str(tmp_path / "ended"))
    for pipe in pipes:
        os.mkfifo(pipe)
    env = stand_in_environment(RING_KERAS_COLLECTIVE_TIMEOUT_S="20")

    rank_pool(2, env=env).run(gather_while_python_is_held_up, args=(pipes,))
