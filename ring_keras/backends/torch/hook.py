"""What an optimizer's hook is on torch, where steps may be compiled by it."""

from __future__ import annotations

from typing import Any

import keras
import torch

from ring_keras.backends.common.hook import GradientHook
from ring_keras.backends.common.step import current_step, see_added_losses
from ring_keras.backends.torch.buffers import take_first_ranks_buffers
from ring_keras.backends.torch.gradients import TorchReducer

__all__ = ["TorchHook"]


class TorchHook(GradientHook):
    """Runs as Python does, between what torch compiles."""

    reducer = TorchReducer

    finite_everywhere = torch.compiler.disable(GradientHook.finite_everywhere)

    def _see_and_apply(self, gradients: list[Any], variables: list[Any]) -> None:
        model = current_step().model
        if model is not None:  # Its layers have added what they add.
            see_added_losses(model.losses)
        super()._apply(gradients, variables)

    _apply = torch.compiler.disable(_see_and_apply)

    def take_modules_state(self, model: keras.Model) -> None:
        """Buffers of the modules in `TorchModuleWrapper`."""
        take_first_ranks_buffers(model, self.options.process_set)
