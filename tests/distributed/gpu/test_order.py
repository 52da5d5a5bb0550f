"""The device gets collectives in one order on all ranks, and does them later."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
from support import RankPool
from support.engine_only import rank_and_size
from support.gpu_calls import gpu
from support.rank_pool import RankPools
from support.stand_in import Control, stand_in_environment

from ring_keras import _native


def nccl_calls(log: list[str]) -> list[tuple[str, str]]:
    """What was launched, each with its communicator."""
    lines = [line.split(maxsplit=2) for line in log]
    return [(line[1], line[2]) for line in lines if line[0] == "nccl"]


def issue_in_different_orders(seed: int) -> list[tuple[str, str]]:
    """Several threads submit what others submit in another order."""
    rank, size = rank_and_size()
    control = Control()
    everyone = gpu().allreduce([np.ones(1, np.float32)], name="connect")
    assert everyone.result[0] == size
    others = _native.add_communicator(range(1, size))
    control.log()
    numbers = list(range(40))
    random.Random(seed + rank).shuffle(numbers)
    pending: dict[int, Any] = {}

    def submit(mine: list[int]) -> None:
        for number in mine:
            # Each has a length of its own, by which the log knows it.
            values = np.full((number + 1,), rank + 1, np.float32)
            uses_set = number % 3 == 0 and rank > 0
            pending[number] = gpu().allreduce(
                [values],
                name=f"tensor {number}",
                communicator_id=others if uses_set else 0,
            )

    # What is not of the process set is of all ranks.
    numbers = [number for number in numbers if rank > 0 or number % 3 != 0]
    threads = [
        threading.Thread(target=submit, args=(numbers[part::4],)) for part in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in sorted(pending):
        members = range(1, size) if number % 3 == 0 else range(size)
        expected = sum(member + 1 for member in members)
        np.testing.assert_array_equal(pending[number].result, [expected] * (number + 1))
    calls = nccl_calls(control.log())
    _native.remove_communicator(others)
    return calls


def test_different_orders_of_submission_are_one_of_launch(
    logged_peers: RankPool,
) -> None:
    for seed in range(3):
        logs = logged_peers.run(issue_in_different_orders, args=(seed,))
        # A process set of one rank needs no NCCL.
        everyone = {communicator for communicator, _ in logs[0]}
        assert len(everyone) == 1
        for log in logs[1:]:
            # Of all communicators together.
            assert log == logs[1]
            assert [call for call in log if call[0] in everyone] == logs[0]


def split_for_process_sets() -> list[str]:
    rank, size = rank_and_size()
    control = Control()
    everyone = gpu().allreduce([np.ones(1, np.float32)], name="before")
    assert everyone.result[0] == size
    control.log()
    # As init() does where every rank has a GPU.
    _native.use_cuda_device(gpu().stream.device)
    sets = {ranks: _native.add_communicator(ranks) for ranks in ((0, 2), (1, 2))}
    for ranks, communicator_id in sets.items():
        if rank in ranks:
            pending = gpu().allreduce(
                [np.full(1, rank + 1, np.float32)],
                name="of a set",
                communicator_id=communicator_id,
            )
            assert pending.result[0] == sum(rank + 1 for rank in ranks)
    log = control.log()
    for communicator_id in sets.values():
        _native.remove_communicator(communicator_id)
    return log


def test_process_sets_are_split_from_the_jobs_communicator(
    rank_pool: RankPools,
) -> None:
    pool = rank_pool(3, env=stand_in_environment())
    try:
        logs = pool.run(split_for_process_sets)
    finally:
        pool.kill()  # The job goes on splitting.

    for rank, log in enumerate(logs):
        connections = [line for line in log if line.split()[0] in ("init", "split")]
        colors = [0 if rank in ranks else -1 for ranks in ((0, 2), (1, 2))]
        # No communicator is connected by itself.
        assert connections == [f"split {color} {rank}" for color in colors]


def submit_while_the_device_is_busy() -> None:
    rank, size = rank_and_size()
    control, stream = Control(), gpu().stream
    gpu().allreduce([np.ones(1, np.float32)], name="connect").results()
    gate = control.hold(stream.handle)
    pending = gpu().allreduce([np.full((1000,), rank, np.float32)], name="held")
    # Every rank got this far although no device has begun.
    _native.barrier("all have submitted")
    assert not pending.operation.is_done()
    # The device was given all of it, and what comes now runs after it.
    pending.operation.follow(stream.handle)
    assert not pending.operation.is_done()
    assert not stream.is_idle()
    control.open(gate)
    pending.operation.wait()
    # Nothing uses the input any more: an allocator may give it away.
    control.take_back(pending.inputs[0].address)
    np.testing.assert_array_equal(
        pending.outputs[0].read(), np.full((1000,), sum(range(size)))
    )
    pending.outputs[0].free()


def test_a_start_returns_before_the_device_begins(held_ranks: RankPool) -> None:
    held_ranks.run(submit_while_the_device_is_busy)


def follow_from_another_stream() -> None:
    from support.gpu_memory import Stream

    rank, size = rank_and_size()
    other = Stream(gpu().stream.device)
    for count in (1, 1000, 3_000_000):
        values = np.full((count,), rank + 1, np.float32)
        pending = gpu().allreduce([values], name="followed")
        pending.operation.follow(other.handle)
        pending.outputs[0].stream = other  # Read in it, with no host in between.
        np.testing.assert_array_equal(
            pending.outputs[0].read(), np.full(count, size * (size + 1) / 2)
        )
        pending.operation.wait()
        pending.free()
    other.close()


def test_any_stream_may_follow(ranks: RankPool) -> None:
    ranks.run(follow_from_another_stream)
