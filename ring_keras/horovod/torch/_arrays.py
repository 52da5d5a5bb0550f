"""Tensors of PyTorch that collectives take."""

from __future__ import annotations

from typing import Any

import torch

from ring_keras.values.arguments import require_collective_dtype

__all__ = ["require_dense"]


def require_dense(tensor: Any, function: str) -> None:
    """Raises unless it is a dense tensor in host memory, of a type that is moved.

    Args:
        tensor: A program's argument.
        function: Of `horovod.torch`, for the text.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"[RK147] horovod.torch.{function} takes tensors of PyTorch. "
            f"Received: {type(tensor).__module__}.{type(tensor).__name__}"
        )
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise ValueError(
            f"[RK147] horovod.torch.{function} takes dense tensors in host memory. "
            f"Received: a tensor of layout {tensor.layout} on {tensor.device}"
        )
    require_collective_dtype(
        str(tensor.dtype).removeprefix("torch."), f"horovod.torch.{function}"
    )
