"""PyTorch's DistributedDataParallel with gloo."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

from benchmarks.ranks.startup import Steps, serve_startup

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    def join() -> Callable[[], Steps]:
        from torch import distributed, set_num_threads

        set_num_threads(1)
        distributed.init_process_group(
            "gloo",
            init_method="file://" + os.environ["BENCHMARK_MEETING"],
            rank=rank,
            world_size=size,
        )
        return _build

    def import_torch() -> None:
        importlib.import_module("torch")

    serve_startup(socket_path, rank, ["torch"], import_torch, join)


def _build() -> Steps:
    from benchmarks.ranks.torch_training import training_steps

    return training_steps("mlp")
