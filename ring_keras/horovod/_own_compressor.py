"""What a compressor of a user's own must have."""

from typing import Any

__all__ = ["require_compressor"]


def require_compressor(compression: Any) -> None:
    """Raises TypeError unless it has what is called around a reduction."""
    for method in ("compress", "decompress"):
        if not callable(getattr(compression, method, None)):
            raise TypeError(
                "`compression` must be one of Compression's, or have the methods "
                "compress(tensor) and decompress(tensor, ctx). "
                f"Received: compression={compression!r}"
            )
