"""Collectives of torch.distributed on GPUs' tensors by the back end ring.

The GPUs are the stand-in's, and so is torch's device "cuda".
"""

from __future__ import annotations

import os
import signal
import threading

import pytest
from support import torch_gpu_cases
from support.processes import wait_until
from support.stand_in import Control
from support.torch_gpu import begin_on_gpu, stand_in_ranks
from support.torch_values import same

torch = pytest.importorskip("torch", reason="`make test-engines`")
dist = pytest.importorskip("torch.distributed", reason="`make test-engines`")

# The first compiles the stand-in for this torch.
pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


@pytest.mark.parametrize("size", [1, 3])
def test_reductions(size):
    stand_in_ranks(torch_gpu_cases.check_reductions, size)


@pytest.mark.parametrize("size", [2, 3])
def test_moves(size):
    stand_in_ranks(torch_gpu_cases.check_moves, size)


def test_an_error_of_one_rank_is_told():
    stand_in_ranks(torch_gpu_cases.check_refusals, 2)


class Held:
    """This thread's new current stream, whose later work waits until `open`."""

    def __init__(self, device):
        torch.ops.ring_keras_stand_in.use_new_stream(device.index)
        self.again(device)

    def again(self, device):
        stream = torch.ops.ring_keras_stand_in.current_stream(device.index)
        self._control = Control()
        self._gate = self._control.hold(stream)

    def open(self):
        self._control.open(self._gate)


def order_worker():
    """No host waits for a device, and every stream for what it must."""
    rank, size, device = begin_on_gpu()
    total = size * (size + 1) / 2
    tensor = torch.zeros(1000).to(device)
    grid = torch.zeros(4, 6).to(device)
    dist.all_reduce(tensor)  # Connects.
    tensor.cpu()
    held = Held(device)
    # The collective sees what the stream was given before, a reader the result.
    for async_op in (False, True):
        tensor.fill_(rank + 1)
        work = dist.all_reduce(tensor, async_op=async_op)
        if async_op:
            work.wait()
            assert not work.is_completed()
        tensor.mul_(2)
        held.open()
        same(tensor, torch.full([1000], 2 * total))
        held.again(device)
    wait_until(work.is_completed, "the device has ended it")
    assert work.is_success()
    # So does a callback, also where results are copied to their places.
    column = grid.T[1::2]
    column.fill_(rank + 1)
    future = dist.all_reduce(column, async_op=True).get_future()
    after = future.then(lambda done: done.value()[0].add_(1))
    after.wait()
    held.open()
    same(column, torch.full([3, 4], total + 1))
    # This thread is on the device on which it was.
    assert torch.ops.ring_keras_stand_in.current_device() == 0
    dist.destroy_process_group()


def test_streams_wait_and_hosts_do_not():
    stand_in_ranks(order_worker, 2)


def freed_worker():
    """The device has what the program has no more; the stand-in ends who touches
    memory that was given back."""
    rank, size, device = begin_on_gpu()
    dist.all_reduce(torch.ones(1).to(device))
    torch.ones(1).to(device).cpu()
    before = allocations()
    held = Held(device)
    # In one of these results are copied to where they belong.
    pool = torch.ops.ring_keras_stand_in.pool_streams(device.index)
    gates = [Control().hold(stream) for stream in pool]
    assert gates

    def begin_all():
        columns = torch.empty(300, 300).to(device).T[::2]
        outputs = [torch.empty(300, 150).to(device).T for _ in range(size)]
        columns.fill_(rank)
        dist.all_reduce(columns, dist.ReduceOp.AVG, async_op=True)
        dist.all_gather(outputs, columns, async_op=True)
        part = torch.empty(50_000).to(device)
        parts = torch.empty(50_000 * size).to(device)
        dist.reduce_scatter_tensor(part, parts, async_op=True)
        whole = torch.empty(100_000).to(device)
        whole.fill_(rank)
        dist.all_reduce(whole, async_op=True)

    begin_all()
    everything = allocations()
    held.open()
    # Nothing is copied of the last.
    wait_until(lambda: allocations() < everything, "what is done was given back")
    for gate in gates:
        Control().open(gate)
    # NCCL's buffer stays.
    wait_until(lambda: allocations() <= before + 1, "memory was given back")
    last = torch.ones(1).to(device)
    dist.all_reduce(last)
    same(last, torch.full([1], float(size)))


def allocations():
    return Control()._library.RingKerasStandInAllocations()


def test_memory_lasts_until_the_device_has_ended():
    stand_in_ranks(freed_worker, 2)


def ends_worker():
    """A group that is destroyed lets its devices end what they have."""
    rank, size, device = begin_on_gpu()
    tensor = torch.zeros(10).to(device)
    dist.all_reduce(tensor)
    held = Held(device)
    tensor.fill_(rank + 1)
    dist.all_reduce(tensor)
    if rank == 0:  # Nobody answers it.
        left_over = dist.all_reduce(torch.ones(1), async_op=True)
    threading.Timer(0.5, held.open).start()
    dist.destroy_process_group()
    if rank == 0:
        with pytest.raises(dist.DistBackendError):
            left_over.wait()
        same(tensor, torch.full([10], size * (size + 1) / 2))


def test_a_destroyed_group_ends_what_a_device_has():
    stand_in_ranks(ends_worker, 2)


def captured_worker():
    rank, _, device = begin_on_gpu()
    tensor = torch.ones(1).to(device)
    torch.ops.ring_keras_stand_in.set_captures(rank == 0)
    with pytest.raises((ValueError, dist.DistBackendError), match="RK671"):
        dist.all_reduce(tensor)
    torch.ops.ring_keras_stand_in.set_captures(False)
    other = torch.ones(1).to(torch.device("cuda", 2 + rank if rank == 0 else rank))
    dist.all_reduce(tensor)
    with pytest.raises((ValueError, dist.DistBackendError), match="one GPU per rank"):
        dist.all_reduce(other)
    dist.all_reduce(tensor)
    tensor.cpu()


def test_graphs_and_second_devices_are_refused():
    stand_in_ranks(captured_worker, 2)


def killed_worker(when):
    rank, _, device = begin_on_gpu()
    tensor = torch.ones(1000).to(device)
    dist.all_reduce(tensor)
    if when == "on the device" and rank == 1:
        Held(device)
        tensor.fill_(1)
    if when == "on the device":
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()  # Its device never begins.
        dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if when == "on the device":
        tensor.cpu()  # Ends, with anything.
        wait_until(work.is_completed, "the device has ended it")
        assert not work.is_success()
        with pytest.raises(dist.DistBackendError, match=r"RK201.*rank 1"):
            work.wait()
    with pytest.raises(dist.DistBackendError, match=r"RK201.*rank 1"):
        for _ in range(2):
            dist.all_reduce(tensor)


@pytest.mark.parametrize("when", ["before", "on the device"])
def test_a_lost_rank_is_named(when):
    outcomes = stand_in_ranks(killed_worker, 3, when, check=False)
    assert [outcome.returned for outcome in outcomes] == [True, False, True]
