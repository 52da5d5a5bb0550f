"""What training needs of torch."""

from __future__ import annotations

import keras
import torch

from ring_keras import keras_internals as internals
from ring_keras.backends.common.framework import Framework
from ring_keras.backends.common.hook import hooks_of
from ring_keras.backends.torch.hook import TorchHook
from ring_keras.backends.torch.ranks_fit import TorchFit
from ring_keras.backends.torch.step_rates import TorchRates
from ring_keras.config import threads_of_rank

__all__ = ["FRAMEWORK"]


def _divide_cores() -> None:
    """Torch would start a thread for each core of the host, on each rank."""
    threads = threads_of_rank()
    if threads is not None:
        torch.set_num_threads(min(threads, torch.get_num_threads()))


def _is_distributed(model: keras.Model) -> bool:
    return bool(hooks_of(model))


def _prepare() -> None:
    _divide_cores()
    internals.leave_own_ddp_out(_is_distributed)


FRAMEWORK = Framework(TorchHook, TorchFit, TorchRates, _prepare)
