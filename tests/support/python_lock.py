"""A rank whose Python is held up, as by an extension that keeps Python's lock."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ring_keras import _native
from support.engine_only import rank_and_size
from support.processes import wait_until

T = TypeVar("T")
Pipes = tuple[str, str]

# Its functions are called with Python's lock held.
_LIBC = ctypes.PyDLL(None)


def make_pipes(directory: Path) -> Pipes:
    """What `while_python_is_held_up` needs; `directory` is one of the test's own."""
    pipes = (str(directory / "held"), str(directory / "ended"))
    for pipe in pipes:
        os.mkfifo(pipe)
    return pipes


def while_python_is_held_up(pipes: Pipes, name: str, call: Callable[[], T]) -> T:
    """What `call` returns, which rank 0 has while no thread of rank 1 runs Python.

    Args:
        pipes: The same on both ranks.
        name: Of the collective that it enters.
        call: Run by ranks 0 and 1.
    """
    rank, _ = rank_and_size()
    held, ended = (os.open(pipe, os.O_RDWR) for pipe in pipes)
    try:
        if rank == 0:
            os.read(held, 1)
            try:
                return call()
            finally:
                os.write(ended, b".")
        results: list[T] = []
        thread = threading.Thread(target=lambda: results.append(call()))
        thread.start()
        wait_until(lambda: _is_pending(name), f"{name} has begun")
        byte = ctypes.create_string_buffer(1)
        _LIBC.write(held, byte, 1)
        _LIBC.read(ended, byte, 1)
        thread.join()
        return results[0]
    finally:
        os.close(held)
        os.close(ended)


def _is_pending(name: str) -> bool:
    return any(
        one["name"] == name and one["done_at"] is None
        for one in _native.recent_collectives()
    )
