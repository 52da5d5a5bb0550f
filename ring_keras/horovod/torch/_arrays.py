"""Tensors of PyTorch as NumPy arrays over the same memory, and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from ring_keras.values.arguments import require_collective_dtype

__all__ = ["array_of", "require_dense", "tensor_of"]

_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


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


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """The memory of a contiguous tensor."""
    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:
        # NumPy has none of its own.
        plain = plain.view(torch.int16)
        array: NDArray[Any] = plain.numpy().view(_BFLOAT16)
    else:
        array = plain.numpy()
    return array


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """The tensor over an array's memory, which must be writeable."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
