"""PyTorch with gloo: raw buffers, DistributedDataParallel, training."""

from __future__ import annotations

import math
import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ranks.agent import Request, answer, read_shapes
from benchmarks.ranks.torch_training import digest, train, train_alone

__all__ = ["serve"]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def serve(socket_path: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method="file://" + os.environ["BENCHMARK_MEETING"],
        rank=rank,
        world_size=size,
    )
    operations = {
        "allreduce": _allreduce,
        "gradients": _gradients,
        "ddp": _ddp,
        "train": train,
        "digest": digest,
        "train_alone": train_alone,
    }
    answer(socket_path, rank, f"torch {torch.__version__}", operations)


def _allreduce(request: Request) -> list[float]:
    dtype = _DTYPES[request.text("dtype", "float32")]
    return _measure(
        request, [torch.empty(request.number("nbytes") // dtype.itemsize, dtype=dtype)]
    )


def _gradients(request: Request) -> list[float]:
    counts = [math.prod(shape) for shape in read_shapes(request.text("shapes"))]
    if request.text("layout") == "flat":
        counts = [sum(counts)]
    return _measure(request, [torch.empty(count) for count in counts])


def _measure(request: Request, tensors: list[torch.Tensor]) -> list[float]:
    def call() -> None:
        for tensor in tensors:
            distributed.all_reduce(tensor)

    for tensor in tensors:
        tensor.fill_(distributed.get_rank() + 1)
    call()
    for tensor in tensors:
        _check(tensor)
        tensor.zero_()
    return request.time(call)


def _check(tensor: torch.Tensor) -> None:
    size = distributed.get_world_size()
    if not bool((tensor == size * (size + 1) // 2).all()):
        raise ValueError("A sum is wrong")


class _Given(torch.autograd.Function):
    """A loss whose gradients are there already: backward does nothing else."""

    gradients: tuple[torch.Tensor, ...]

    @staticmethod
    def forward(context: object, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.zeros(())

    @staticmethod
    def backward(context: object, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _Given.gradients


class _Parameters(torch.nn.Module):
    """Parameters of some shapes, of which it computes nothing."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.tensors = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self) -> torch.Tensor:
        loss: torch.Tensor = _Given.apply(*self.tensors)
        return loss


def _ddp(request: Request) -> list[float]:
    """Its buckets, packing and unpacking, and nothing of a model's own."""
    shapes = read_shapes(request.text("shapes"))
    rank = distributed.get_rank()
    _Given.gradients = tuple(torch.full(shape, rank + 1.0) for shape in shapes)
    module = _Parameters(shapes)
    model = DistributedDataParallel(module, gradient_as_bucket_view=True)

    def call() -> None:
        model().backward()

    # It makes other buckets after the first step.
    for _ in range(2):
        module.zero_grad()
        call()
    for parameter in module.parameters():
        if parameter.grad is None:
            raise ValueError("A gradient is missing")
        _check(parameter.grad * distributed.get_world_size())
    module.zero_grad()

    def step() -> None:
        call()
        module.zero_grad()

    return request.time(step)
