"""Compressors whatever the framework is: what a user's own one must have."""

from typing import Any

__all__ = ["Compressor", "NoneCompressor", "require_compressor"]


class Compressor:
    """To be subclassed; `compression` takes subclasses and instances of them."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """What is reduced in place of a tensor, and what `decompress` will need."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Makes the result of the reduction what it would be without `compress`."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor, and None."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor."""
        return tensor


def require_compressor(compression: Any) -> None:
    """Raises TypeError unless it has what is called around a reduction."""
    for method in ("compress", "decompress"):
        if not callable(getattr(compression, method, None)):
            raise TypeError(
                "`compression` must be one of Compression's, or have the methods "
                "compress(tensor) and decompress(tensor, ctx). "
                f"Received: compression={compression!r}"
            )
