"""The models of models.py in PyTorch, trained alone or with DDP."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ranks.agent import Request, UnsupportedError

__all__ = ["digest", "train", "train_alone", "training_steps"]

_CLASSES = 10
# Behind a model's name, as models.py has it.
_WITH_ADAM = "+adam"


def train(request: Request) -> list[float]:
    """Steps of a loop with DDP."""
    return _train(request, with_ddp=True)


def train_alone(request: Request) -> list[float]:
    """Steps that no other rank takes part in."""
    return _train(request, with_ddp=False)


def training_steps(name: str) -> Callable[[int, int], list[float]]:
    """What takes steps of a model with DDP: untimed ones first."""
    _, step = _training(_Way(name))

    def steps(warmup: int, samples: int) -> list[float]:
        parameters = {"warmup": str(warmup), "samples": str(samples)}
        return Request("steps", parameters).time(step)

    return steps


@dataclass(frozen=True)
class _Way:
    """How a model is trained."""

    model: str
    with_ddp: bool = True
    compiled: bool = False
    sharded: bool = False


def _train(request: Request, with_ddp: bool) -> list[float]:
    _, step = _training(_way(request, with_ddp))
    return request.time(step)


def _way(request: Request, with_ddp: bool) -> _Way:
    loop = request.text("loop")
    if loop not in ("custom", "compiled"):
        raise UnsupportedError
    sharded = request.text("state", "") == "sharded"
    return _Way(request.text("model"), with_ddp, loop == "compiled", sharded)


def digest(request: Request) -> list[float]:
    """A number that stands for the weights; the same on ranks that train together."""
    model, _ = _training(_way(request, with_ddp=True))
    return [sum(float(weights.abs().sum()) for weights in model.parameters())]


@functools.cache
def _training(way: _Way) -> tuple[nn.Module, Callable[[], float]]:
    name = way.model
    model = _model(name)
    if way.with_ddp:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    kind: type[torch.optim.Optimizer]
    if name.endswith(_WITH_ADAM):
        kind, settings = torch.optim.Adam, {"lr": 0.0001}
    else:
        kind, settings = torch.optim.SGD, {"lr": 0.001, "momentum": 0.9}
    optimizer = (
        ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, **settings)
        if way.sharded
        else kind(model.parameters(), **settings)
    )
    if way.compiled:
        model = torch.compile(model)
    loss = nn.CrossEntropyLoss()
    x, y = _batch(name)

    def step() -> float:
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return float(value)

    return model, step


def _model(name: str) -> nn.Module:
    name = name.removesuffix(_WITH_ADAM)
    if name == "mlp":
        return _dense([784, 2048, 2048, 256, _CLASSES])
    if name == "deep":
        return _dense([32] * 49 + [_CLASSES])
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, _CLASSES),
    )


def _dense(widths: list[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    name = name.removesuffix(_WITH_ADAM)
    count = 32 if name == "cnn" else 64
    generator = torch.Generator().manual_seed(distributed.get_rank())
    width = 32 if name == "deep" else 784
    x = torch.randn(count, width, generator=generator)
    return x, torch.randint(_CLASSES, (count,), generator=generator)
