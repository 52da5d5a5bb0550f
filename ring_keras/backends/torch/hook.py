"""What an optimizer's hook is on torch, where steps may be compiled by it."""

from __future__ import annotations

import keras
import torch

from ring_keras.backends.common.hook import GradientHook
from ring_keras.backends.torch.buffers import take_first_ranks_buffers
from ring_keras.backends.torch.gradients import TorchReducer

__all__ = ["TorchHook"]


class TorchHook(GradientHook):
    """Runs as Python does, between what torch compiles."""

    reducer = TorchReducer

    finite_everywhere = torch.compiler.disable(GradientHook.finite_everywhere)
    _apply = torch.compiler.disable(GradientHook._apply)

    def take_modules_state(self, model: keras.Model) -> None:
        """Buffers of the modules in `TorchModuleWrapper`."""
        take_first_ranks_buffers(model, self.options.process_set)
