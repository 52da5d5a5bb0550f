"""Ranks of PyTorch: by the back end ring, or by the names of Horovod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.engine_only import WITHOUT_TENSORFLOW
from support.run_ranks import run_ranks

__all__ = ["begin", "begin_horovod", "ranks"]


def begin(**options: Any) -> tuple[int, int]:
    """Makes the default process group; this rank and the number of ranks."""
    import torch
    import torch.distributed as dist

    import ring_keras.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("ring", init_method="ring://", **options)
    return dist.get_rank(), dist.get_world_size()


def ranks(worker: Callable[..., Any], size: int, *args: Any, **options: Any) -> Any:
    """Runs `worker` on that many new processes, which have no TensorFlow."""
    env = WITHOUT_TENSORFLOW | {"KERAS_BACKEND": "torch"}
    return run_ranks(worker, size, args=args, env=env, **options)


def begin_horovod() -> Any:
    """Joins the job as a script of Horovod's does; its module."""
    import torch

    import ring_keras.horovod.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    return hvd
