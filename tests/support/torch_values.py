"""Tensors of ranks whose collectives have one exact result."""

from __future__ import annotations

import math
from typing import Any

SHAPES: list[tuple[int, ...]] = [(0,), (), (7, 3), (300_001,)]
"""Of no elements, of one, of an odd number, and more than fit into a slot."""


def values(shape: tuple[int, ...], dtype: Any, rank: int) -> Any:
    """Small whole numbers, so that every order of additions gives the same."""
    import torch

    numbers = (torch.arange(math.prod(shape)) * (rank + 2) + rank) % 5
    if dtype == torch.bool:
        return (numbers > 2).reshape(shape)
    if dtype.is_complex:
        return torch.complex(numbers.float(), -numbers.float()).reshape(shape)
    return numbers.to(torch.float32).to(dtype).reshape(shape)


def same(got: Any, expected: Any) -> None:
    """Fails unless both have the same bits; `got` may be on a GPU."""
    import torch

    assert got.dtype == expected.dtype and got.shape == expected.shape
    got = got.cpu()
    pair = [one.contiguous().flatten().view(torch.uint8) for one in (got, expected)]
    assert torch.equal(*pair), (got, expected)
