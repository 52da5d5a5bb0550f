"""torch.distributed by the engine, and Horovod's optimizer on it, beside gloo.

`ringrun -np 2 python benchmarks/torch_backend.py`. Both take turns in one process, on
groups of the same ranks. Prints Markdown.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ring_keras.horovod.torch as hvd
import ring_keras.torch  # noqa: F401

ROUNDS = 9
# Bytes, and how many calls a round has.
SIZES = {4: 300, 64 << 10: 200, 1 << 20: 50, 25 << 20: 6}


def in_turn(calls: Mapping[str, Callable[[], Any]], times: int) -> dict[str, float]:
    """The median of each one's seconds a call."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 1):  # The first warms up.
        for name, call in calls.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(times):
                call()
            if number:
                rounds[name].append((time.perf_counter() - start) / times)
    return {name: statistics.median(seconds) for name, seconds in rounds.items()}


def mlp() -> torch.nn.Module:
    """6.3 million weights."""
    torch.manual_seed(1)
    widths = [784, 2048, 2048, 256, 10]
    layers: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)


def step_of_ddp(group: Any) -> Callable[[], None]:
    model = DistributedDataParallel(
        mlp(), process_group=group, gradient_as_bucket_view=True
    )
    return step_of(model, sgd(model))


def step_of_horovod() -> Callable[[], None]:
    model = mlp()
    return step_of(model, hvd.DistributedOptimizer(sgd(model)))


def step_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[], None]:
    """A training step with a batch of 64."""
    x, y = torch.randn(64, 784), torch.randint(10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def main() -> None:
    """Prints a line for each size, and one for a step."""
    dist.init_process_group("ring", init_method="ring://")
    torch.set_num_threads(1)
    groups = {"ring": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}

    def report(what: str, seconds: dict[str, float]) -> None:
        if dist.get_rank() == 0:
            ring, gloo = seconds["ring"], seconds["gloo"]
            cells = " | ".join(f"{one * 1e6:,.0f} us" for one in (ring, gloo))
            print(f"| {what} | {cells} | **{gloo / ring:.1f}** |", flush=True)

    report_head = "| | ring | gloo | gloo's time over ring's |\n|---|---|---|---|"
    if dist.get_rank() == 0:
        print(report_head)
    for nbytes, times in SIZES.items():
        tensor = torch.zeros(nbytes // 4)
        calls = {
            name: functools.partial(dist.all_reduce, tensor, group=group)
            for name, group in groups.items()
        }
        report(f"`all_reduce` of {nbytes:,} bytes", in_turn(calls, times))
    steps = {name: step_of_ddp(group) for name, group in groups.items()}
    steps["horovod"] = step_of_horovod()
    seconds = in_turn(steps, 5)
    report("a step of `DistributedDataParallel`", seconds)
    seconds["ring"] = seconds["horovod"]
    report("a step of Horovod's `DistributedOptimizer` beside it", seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
