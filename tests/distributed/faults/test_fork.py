"""Processes that a rank forks: they are not ranks, and do it no harm."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import run_ranks
from support.engine_only import join

from ring_keras import _native
from ring_keras.errors import NotInitializedError

# Far beyond what a child takes that does not hang.
CHILD_S = 20


def status_of(child: int) -> int:
    """How a child ended; one that does not end is killed."""
    deadline = time.monotonic() + CHILD_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise TimeoutError("the forked child hangs")


def forked(function: Callable[[], None]) -> int:
    """Runs `function` in a forked child; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return status_of(child)


def expect_refused(call: Callable[[], object], rank: int) -> None:
    try:
        call()
    except (RuntimeError, NotInitializedError) as error:
        # Its name is in the text where its class has not been imported.
        text = f"{type(error).__name__}: {error}"
        assert "NotInitializedError: " in text, text
        assert f"was forked from rank {rank}" in text, text
        assert "spawn" in text, text
    else:
        raise AssertionError("a forked child took part in a collective")


def total(count: int = 1000) -> float:
    return float(_native.allreduce(np.ones(count, np.float32), "sum", "total")[0])


def a_child_tries() -> list[float]:
    rank, _ = join()

    def child() -> None:
        ones = np.ones(1000, np.float32)
        expect_refused(lambda: _native.allreduce(ones, "sum", "total"), rank)
        expect_refused(lambda: _native.barrier("b"), rank)
        expect_refused(lambda: _native.add_communicator([0]), rank)
        expect_refused(lambda: _native.init(), rank)
        # What a data pipeline asks.
        assert _native.is_initialized()
        assert _native.topology()[0] == rank
        # No socket, pipe or memory of the job.
        for fd in Path("/proc/self/fd").iterdir():
            if fd.is_symlink():  # Not the one that lists them.
                target = str(fd.readlink())
                assert not target.startswith(("socket:", "anon_inode:")), target
                assert "memfd:ring_keras" not in target, target
        # And not in its own children either.
        assert forked(lambda: expect_refused(_native.barrier, rank)) == 0

    totals = [total()]
    assert forked(child) == 0
    totals.append(total())
    return totals


@pytest.mark.parametrize(
    "transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)]
)
def test_a_collective_of_a_child_is_refused(transport: str) -> None:
    env = {"RING_KERAS_TRANSPORT": transport}
    assert run_ranks(a_child_tries, 2, env=env) == [[2.0, 2.0]] * 2


def exit_as_a_script() -> None:
    """What `sys.exit()` comes to: exit handlers run, objects are destroyed."""
    ctypes.pythonapi.Py_Exit(0)


def exit_at_once() -> None:
    os._exit(0)


def children_leave() -> list[float]:
    join()
    totals = [total()]
    for leave in (exit_as_a_script, exit_at_once):
        assert forked(leave) == 0
        totals.append(total())
    return totals


@pytest.mark.parametrize(
    "transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)]
)
def test_a_child_that_leaves_does_not_take_its_parent_along(transport: str) -> None:
    env = {"RING_KERAS_TRANSPORT": transport}
    assert run_ranks(children_leave, 2, env=env) == [[2.0] * 3] * 2


def shared_arrays() -> list[float]:
    rank, _ = join()
    array = _native.shared_empty([1 << 20], np.float32)
    array[:] = rank + 1
    seen = []

    def child() -> None:
        nonlocal array
        assert (array == rank + 1).all()
        array[:] = 100
        assert (array == 100).all()
        # Gives the memory back, as far as the child knows.
        del array

    assert forked(child) == 0
    seen.append(float(array.max()))
    _native.allreduce(array, "sum", "in place", out=array)
    seen += [float(array.min()), float(array.max())]
    return seen


def test_a_child_has_shared_arrays_of_its_own() -> None:
    results = run_ranks(shared_arrays, 2)
    assert results == [[1.0, 3.0, 3.0], [2.0, 3.0, 3.0]]


def child_sums(views: list[np.ndarray], overwrite: Callable[[], None]) -> list[float]:
    """The sum of what a child sees in the view, at first and once it is overwritten."""
    told_read, told_write = os.pipe()
    said_read, said_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(said_write, np.float64(views[0].sum()).tobytes())
            os.read(told_read, 1)
            os.write(said_write, np.float64(views[0].sum()).tobytes())
        finally:
            os._exit(0)
    first = os.read(said_read, 8)
    overwrite()
    os.write(told_write, b"!")
    second = os.read(said_read, 8)
    assert status_of(child) == 0
    for fd in (told_read, told_write, said_read, said_write):
        os.close(fd)
    return [float(np.frombuffer(said)[0]) for said in (first, second)]


def overwritten_buffers() -> list[list[float]]:
    join()
    kept = [_native.shared_empty([1 << 18], np.float32)]
    freed = [_native.shared_empty([1 << 18], np.float32)]
    kept[0][:] = 1
    freed[0][:] = 2
    return [
        child_sums(kept, lambda: kept[0].fill(3)),
        child_sums(freed, freed.clear),
    ]


def test_a_child_has_shared_buffers_as_they_were() -> None:
    count = float(1 << 18)
    for sums in run_ranks(overwritten_buffers, 2):
        assert sums == [[count, count], [2 * count, 2 * count]]


def overwritten_tensor() -> tuple[bool, list[float]]:
    import ring_keras as ring

    ring.init()
    import tensorflow as tf

    views = [np.asarray(tf.ones([1 << 18]) + tf.ones([1 << 18]))]
    address = views[0].ctypes.data
    later = []

    def overwrite() -> None:
        views.clear()
        for value in range(3, 40):
            later.append(tf.fill([1 << 18], float(value)) * 1.0)

    sums = child_sums(views, overwrite)
    reused = any(np.asarray(tensor).ctypes.data == address for tensor in later)
    ring.barrier()
    return reused, sums


def test_a_child_has_large_tensors_as_they_were() -> None:
    count = float(1 << 18)
    for reused, sums in run_ranks(overwritten_tensor, 2):
        assert reused, "the test shows nothing"
        assert sums == [2 * count, 2 * count]


def sample(index: int) -> tuple[int, int]:
    rank, *_ = _native.topology()
    return rank, index * index


def a_pipeline_works() -> list[list[tuple[int, int]]]:
    join()
    batches = []
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for step in range(3):
            batches.append(pool.map(sample, range(step, step + 2)))
            assert total() == 2.0
            # With a function between fork and exec, and without.
            for before in (None, os.getpid):
                said = subprocess.run(
                    ["echo", str(step)],
                    preexec_fn=before,
                    capture_output=True,
                    timeout=CHILD_S,
                    check=True,
                )
                assert said.stdout == f"{step}\n".encode()
    return batches


def test_workers_of_a_data_pipeline_go_on_working() -> None:
    for rank, batches in enumerate(run_ranks(a_pipeline_works, 2)):
        assert batches == [
            [(rank, step * step), (rank, (step + 1) ** 2)] for step in range(3)
        ]
