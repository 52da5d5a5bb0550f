"""What makes tensors smaller on their way, as Horovod has it: classes of functions.

The engine itself compresses what travels between hosts; that is what the classes here
stand for when a function gets them as `compression`. Called by hand they round tensors.
A class of a user's own is called before and after each reduction.
"""

from typing import Any

import torch

from ring_keras.horovod._compressors import (
    Compressor,
    NoneCompressor,
    require_compressor,
)

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "wire_and_own",
]


class _Rounding(Compressor):
    """To a floating-point type of 16 bits; integers stay as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The rounded tensor, and the dtype it had."""
        rounded = tensor.to(cls.dtype) if tensor.is_floating_point() else tensor
        return rounded, tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor, in the dtype it had."""
        return tensor.to(ctx)


class FP16Compressor(_Rounding):
    """To float16."""

    dtype = torch.float16


class BF16Compressor(_Rounding):
    """To bfloat16, which Horovod has not."""

    dtype = torch.bfloat16


class Compression:
    """The values of `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


_WIRE: dict[type, str | None] = {
    NoneCompressor: None,
    FP16Compressor: "float16",
    BF16Compressor: "bfloat16",
}


def wire_and_own(compression: Any) -> tuple[str | None, Any]:
    """The type in which the engine sends float32, and a compressor of a user's own."""
    for cls, wire in _WIRE.items():
        if compression is cls or type(compression) is cls:
            return wire, None
    require_compressor(compression)
    return None, compression
