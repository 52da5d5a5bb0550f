"""How tensors travel between hosts."""

import enum
from typing import Any, Protocol, runtime_checkable

__all__ = ["Compression", "Compressor"]


class Compression(str, enum.Enum):
    """The type in which float32 tensors travel between hosts.

    It halves the bytes on a slow network. A rank rounds its tensors to 16 bits
    before it sends them. Sums are computed in float32, and rounded for the way
    back. The result is the same on every rank. Within a host nothing is rounded,
    and other types are never compressed.

    A member equals its name, and functions take either:
    `compression=Compression.bf16` or `compression="bf16"`.

    Examples:
        >>> optimizer = ring.DistributedOptimizer("adam", compression="bf16")
        >>> ring.allreduce(tf.ones(2), compression=ring.Compression.fp16).numpy()
        array([1., 1.], dtype=float32)
    """

    none = "none"
    bf16 = "bf16"
    """8 bits of mantissa, the range of float32: for gradients."""
    fp16 = "fp16"
    """11 bits of mantissa, up to 65504: sums beyond that become infinite."""

    def __str__(self) -> str:
        return self.value


@runtime_checkable
class Compressor(Protocol):
    """A compression of one's own, for gradients: a class with these, or an object.

    The same on every rank. What `compress` makes must add up: the ranks reduce it.
    """

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """What is reduced in place of a dense gradient, and what undoing it needs."""

    def decompress(self, tensor: Any, context: Any) -> Any:
        """The gradient, of what the ranks have reduced."""
