"""Tensors of PyTorch as NumPy arrays over the same memory, and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["array_of", "tensor_of"]

_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


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
