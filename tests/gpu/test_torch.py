"""The core driven from torch, without TensorFlow, on a real GPU."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from support import RankPool, run_ranks
from support.engine_only import join, rank_and_size
from support.real_gpu import has_gpu, real_gpu_environment

from ring_keras import _native

pytestmark = pytest.mark.gpu


def submit_allreduce(tensors: list[Any], **options: Any) -> _native.DeviceOperation:
    """In place, after what torch's current stream has been given."""
    import torch

    return _native.device_allreduce(
        [(tensor.data_ptr(), tuple(tensor.shape)) for tensor in tensors],
        [tensor.data_ptr() for tensor in tensors],
        str(tensors[0].dtype).removeprefix("torch."),
        tensors[0].device.index,
        torch.cuda.current_stream().cuda_stream,
        **options,
    )


def follow(operation: _native.DeviceOperation) -> None:
    import torch

    operation.follow(torch.cuda.current_stream().cuda_stream)


def compute_before_and_after() -> None:
    """No host synchronisation between kernels of torch's and the collective."""
    import torch

    rank, size = rank_and_size()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        for count in (1, 1000, 10_000_001):
            tensor = torch.zeros(count, dtype=dtype, device="cuda")
            torch.cuda._sleep(20_000_000)  # Some milliseconds of the device's.
            tensor += rank + 1
            operation = submit_allreduce([tensor])
            follow(operation)
            tensor *= 2
            expected = size * (size + 1)
            assert bool((tensor == expected).all()), (dtype, count)
            operation.wait()


def gradients_in_buckets() -> None:
    import torch

    rank, size = rank_and_size()
    torch.manual_seed(rank)
    gradients = [
        torch.randn(shape, device="cuda")
        for shape in [(7, 7, 3, 64), (64,), (3, 3, 64, 64), (2048, 1000), (1000,)] * 30
    ]
    together = [gradient.clone() for gradient in gradients]
    operations = [
        submit_allreduce(together[start : start + 50], op="average", name=f"b{start}")
        for start in range(0, len(together), 50)
    ]
    for operation in operations:
        follow(operation)
    for gradient, average in zip(gradients, together, strict=True):
        # Of each alone, by way of the host.
        one = _native.allreduce(gradient.cpu().numpy(), "sum", "reference") / size
        torch.testing.assert_close(average.cpu(), torch.from_numpy(one))
    for operation in operations:
        operation.wait()


def gather_into_torchs_memory() -> None:
    """torch's allocator hands out memory that its stream may still use."""
    import torch

    rank, size = rank_and_size()
    for repeat in range(20):
        scratch = torch.ones(size * 1000, 100, device="cuda")
        torch.cuda._sleep(5_000_000)
        scratch.mul_(3)
        del scratch  # The next tensor of this size takes its place.
        mine = torch.full((1000, 100), float(rank + repeat), device="cuda")
        output = torch.empty((size * 1000, 100), device="cuda")
        operation = _native.device_allgather(
            (mine.data_ptr(), tuple(mine.shape)),
            (output.data_ptr(), output.nbytes),
            "float32",
            mine.device.index,
            torch.cuda.current_stream().cuda_stream,
        )
        follow(operation)
        gathered = output.reshape(size, -1).cpu()
        for other in range(size):
            assert bool((gathered[other] == other + repeat).all())
        operation.wait()


def more_than_a_32_bit_number_counts() -> None:
    """Bytes in one tensor, bytes of a bucket, elements; reduced and broadcast."""
    import torch

    rank, size = rank_and_size()
    total = size * (size + 1) // 2
    for dtype, counts in (
        (torch.float32, [2**29 + 11]),
        (torch.float32, [2**28 + 3, 5, 2**28 + 7]),
        (torch.uint8, [2**31 + 13]),
        (torch.uint8, [2**31 + 13, 2**31 + 17]),
    ):
        tensors = [
            torch.full((count,), rank + 1, dtype=dtype, device="cuda")
            for count in counts
        ]
        operation = submit_allreduce(tensors)
        follow(operation)
        operation.wait()
        for tensor in tensors:
            low, high = tensor.aminmax()
            assert (low.item(), high.item()) == (total, total), (dtype, counts)
            tensor[-1] = rank + 7
        operation = _native.device_broadcast(
            [(tensor.data_ptr(), tuple(tensor.shape)) for tensor in tensors],
            [tensor.data_ptr() for tensor in tensors],
            str(dtype).removeprefix("torch."),
            0,
            torch.cuda.current_stream().cuda_stream,
            size - 1,
        )
        follow(operation)
        operation.wait()
        assert [tensor[-1].item() for tensor in tensors] == [size + 6] * len(tensors)
        del tensors, tensor
        torch.cuda.empty_cache()


@pytest.mark.parametrize(
    "worker",
    [
        compute_before_and_after,
        gradients_in_buckets,
        gather_into_torchs_memory,
        more_than_a_32_bit_number_counts,
    ],
    ids=lambda worker: worker.__name__,
)
def test_torch(ranks: RankPool, worker: Any) -> None:
    ranks.run(worker, timeout_s=120)


def dies_while_the_others_device_waits() -> None:
    import torch

    rank, size = join()
    ids = [0]
    if size > 2:  # Of a process set first.
        ids.insert(0, _native.add_communicator([0, 1]))
        if rank > 1:
            ids = [0]
    tensor = torch.ones(1000, device="cuda")
    for number in ids:
        submit_allreduce([tensor], name="connect", communicator_id=number).wait()
    if rank == 1:
        torch.cuda._sleep(20_000_000_000)  # Some seconds: rank 0 waits in NCCL.
    # With two communicators the abort of either waits for the other's.
    operations = [
        submit_allreduce([tensor], name="grads", communicator_id=number)
        for number in [*ids, *ids[:-1]]
    ]
    for operation in operations:
        follow(operation)
    _native.barrier("launched")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for operation in operations:
        operation.wait()


@pytest.mark.parametrize("size", [2, 3], ids=["one set", "two sets"])
def test_a_killed_rank_is_named(size: int) -> None:
    if not has_gpu():
        pytest.skip("needs an NVIDIA GPU, and nvidia-smi lists none")
    outcomes = run_ranks(
        dies_while_the_others_device_waits,
        size,
        env=real_gpu_environment(size),
        check=False,
    )
    assert outcomes[1].signal == signal.SIGKILL
    for survivor in (outcome for outcome in outcomes if outcome.rank != 1):
        assert survivor.message.startswith("PeerLostError: "), survivor.describe()
        assert "rank 1 (host " in survivor.message, survivor.describe()
        assert not survivor.timed_out, survivor.describe()
