"""How tensors travel between hosts."""

import enum
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["Compression", "Compressor", "PowerSGD"]


@dataclass(frozen=True)
class PowerSGD:
    """How `Compression.powersgd` sends gradients, which see.

    Attributes:
        rank: Columns of the two thin matrices that travel in place of a gradient.
    """

    rank: int = 2

    def __post_init__(self) -> None:
        """Raises ValueError if there is no such rank."""
        if isinstance(self.rank, bool) or not isinstance(self.rank, int):
            raise ValueError(
                f"PowerSGD's `rank` must be a whole number. Received: {self.rank!r}"
            )
        if self.rank < 1:
            raise ValueError(
                f"PowerSGD's `rank` must be 1 or more. Received: rank={self.rank}"
            )


class Compression(str, enum.Enum):
    """The type in which float32 tensors travel between hosts.

    It halves the bytes on a slow network. A rank rounds its tensors to 16 bits
    before it sends them. Sums are computed in float32, and rounded for the way
    back. The result is the same on every rank. Within a host nothing is rounded,
    and other types are never compressed. `powersgd()` is another kind.

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

    @staticmethod
    def powersgd(rank: int = 2) -> PowerSGD:
        """Gradients as products of two thin matrices, for networks that are slow.

        Of a gradient of n x m elements, `rank * (n + m)` travel. The result is not the
        average but near it; what is missing is added to the next step's gradients.
        After Vogels, Karimireddy and Jaggi, 2019; PyTorch DDP has the same as a hook.

        For `DistributedOptimizer` and `DistributedGradientTape`, not for other
        functions; also between ranks of one host. Biases and other gradients that
        would not become less than half as large travel as they are, and so do sparse
        ones without `sparse_as_dense=True`. The leading dimensions of a kernel of
        convolution are its rows.

        Each rank keeps as many bytes again as its gradients have. No file has them: a
        process that goes on from a backup begins without what was missing, and so do
        all ranks after one has left or joined. So does a rank that loads a file into
        the model (`load_weights`) with its optimizer. Weights that are set or
        broadcast, and those of a tape's model, leave it as it is. What a rank in
        `join()` has left out comes when it is back.

        Tapes of the same variables share it, so add their gradients up for one update;
        and a tape does not know of a `LossScaleOptimizer`, so after the scale has
        changed, what was missing counts twice or half, once.

        Examples:
            >>> powersgd = ring.Compression.powersgd(rank=4)
            >>> optimizer = ring.DistributedOptimizer("sgd", compression=powersgd)

        Args:
            rank: 1 or more. 1, 2 and 4 are usual; more is nearer to the average.

        Returns:
            What `compression` takes.

        Raises:
            ValueError: If the rank is no such number.
        """
        return PowerSGD(rank)


@runtime_checkable
class Compressor(Protocol):
    """A compression of one's own, for gradients: a class with these, or an object.

    The same on every rank. What `compress` makes must add up: the ranks reduce it.
    """

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """What is reduced in place of a dense gradient, and what undoing it needs."""

    def decompress(self, tensor: Any, context: Any) -> Any:
        """The gradient, of what the ranks have reduced."""
