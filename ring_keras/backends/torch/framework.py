"""What training needs of torch."""

from __future__ import annotations

import torch

from ring_keras.backends.common.framework import Framework
from ring_keras.backends.torch.hook import TorchHook
from ring_keras.backends.torch.ranks_fit import TorchFit
from ring_keras.callbacks.step_rates import StepRates
from ring_keras.config import threads_of_rank

__all__ = ["FRAMEWORK"]


def _divide_cores() -> None:
    """Torch would start a thread for each core of the host, on each rank."""
    threads = threads_of_rank()
    if threads is not None:
        torch.set_num_threads(min(threads, torch.get_num_threads()))


FRAMEWORK = Framework(TorchHook, TorchFit, StepRates, _divide_cores)
