"""Ranks of PyTorch with a GPU each: the stand-in's, or a real one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.engine_only import WITHOUT_TENSORFLOW
from support.run_ranks import run_ranks
from support.stand_in import stand_in_environment, torch_stand_in_directory
from support.torch_ranks import begin

_LIBRARY = "ring_keras_stand_in_torch.so"


def begin_on_gpu(**options: Any) -> tuple[int, int, Any]:
    """Makes the default process group; this rank, the number of ranks, its device."""
    import torch

    directory = Path(os.environ["RING_KERAS_CUDA_LIBRARY_PATH"].split(os.pathsep)[0])
    is_real = not (directory / _LIBRARY).exists()
    if not is_real:
        torch.ops.load_library(str(directory / _LIBRARY))
        # A torch without CUDA would refuse to make a tensor there, and to say this.
        torch.cuda._lazy_init = lambda: None
        torch.cuda.get_device_capability = lambda device=None: (9, 0)
    rank, size = begin(**options)
    return rank, size, torch.device("cuda", 0 if is_real else rank)


def stand_in_ranks(
    worker: Callable[..., Any], size: int, *args: Any, **options: Any
) -> Any:
    """Runs `worker` on that many new processes, whose GPUs are the stand-in's."""
    env = stand_in_environment(
        torch_stand_in_directory(),
        KERAS_BACKEND="torch",
        RING_KERAS_COLLECTIVE_TIMEOUT_S="60",
    )
    return run_ranks(worker, size, args=args, env=env | WITHOUT_TENSORFLOW, **options)
