"""The core driven from torch, without TensorFlow, on a real GPU."""

from __future__ import annotations

import importlib.util
import os
import signal
from typing import Any

import pytest
from support import RankPool, run_ranks, torch_gpu_cases
from support.engine_only import join, rank_and_size
from support.real_gpu import has_gpu, real_gpu_environment
from support.torch_gpu import begin_on_gpu
from support.torch_values import same

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


def back_end_between_kernels() -> None:
    """torch.distributed: no host waits for a device, and streams for what they must."""
    import torch
    import torch.distributed as dist

    rank, size, device = begin_on_gpu()
    total = size * (size + 1) / 2
    grid = torch.zeros(400, 600, device=device)
    for _ in range(20):
        scratch = torch.full((1000, 100), 7.0, device=device)
        tensor = torch.zeros(1_000_001, device=device)
        torch.cuda._sleep(20_000_000)  # Some milliseconds of the device's.
        tensor += rank + 1
        dist.all_reduce(tensor)
        tensor *= 2
        # The memory of what is freed goes to the next tensor of that size.
        del scratch
        outputs = [torch.empty(1000, 50, device=device).T for _ in range(size)]
        mine = torch.full((50, 1000), float(rank), device=device)
        dist.all_gather(outputs, mine, async_op=True).wait()
        dist.all_gather([torch.empty_like(one) for one in outputs], mine, async_op=True)
        del mine
        column = grid.T[1::2]
        column.fill_(rank + 1)
        future = dist.all_reduce(column, async_op=True).get_future()
        after = future.then(lambda done: done.value()[0] + 1)
        same(after.wait(), torch.full((300, 400), total + 1))
        same(tensor, torch.full((1_000_001,), 2 * total))
        for other, output in enumerate(outputs):
            same(output, torch.full((50, 1000), float(other)))
    dist.destroy_process_group()


def back_end_trains_and_refuses_graphs() -> None:
    """Gradients of DistributedDataParallel are the mean of the ranks'."""
    import torch
    import torch.distributed as dist

    rank, size, device = begin_on_gpu()
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 200).to(device)
    batches = torch.randint(-3, 4, (size, 16, 300)).float().to(device)
    alone = torch.autograd.grad(model(batches.reshape(-1, 300)).mean(), model.weight)
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
    for _ in range(3):
        model.zero_grad()
        parallel(batches[rank]).mean().backward()
        torch.testing.assert_close(model.weight.grad, alone[0])
    tensor = torch.ones(3, device=device)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(Exception, match="RK671"), torch.cuda.graph(graph):
        dist.all_reduce(tensor)
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "worker",
    [
        torch_gpu_cases.check_reductions,
        torch_gpu_cases.check_moves,
        torch_gpu_cases.check_refusals,
        back_end_between_kernels,
        back_end_trains_and_refuses_graphs,
    ],
    ids=lambda worker: worker.__name__,
)
def test_back_end_of_torch_distributed(worker: Any, size: int) -> None:
    """By the back end ring, on tensors of a GPU that the ranks share."""
    if size == 1 and worker in (
        torch_gpu_cases.check_moves,
        torch_gpu_cases.check_refusals,
    ):
        pytest.skip("needs another rank")
    torch = pytest.importorskip("torch")
    if not (has_gpu() and torch.cuda.is_available()):
        pytest.skip("needs an NVIDIA GPU, and torch or nvidia-smi finds none")
    minor = "_".join(torch.__version__.split(".")[:2])
    if importlib.util.find_spec(f"ring_keras._torch_{minor}") is None:
        pytest.skip(f"needs ring_keras built for torch {torch.__version__}")
    env = [each | {"KERAS_BACKEND": "torch"} for each in real_gpu_environment(size)]
    run_ranks(worker, size, env=env, timeout_s=120)
