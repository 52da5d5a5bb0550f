"""How a reduction combines the values of the ranks."""

import enum

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"]


class ReduceOp(str, enum.Enum):
    """How a reduction combines the values of the ranks.

    A member equals its name in lower case, and functions take either:
    `op=ReduceOp.SUM` or `op="sum"`.

    Examples:
        >>> ring.allreduce(tf.constant(ring.rank() + 1), op=ring.Sum).numpy()
        np.int32(3)
        >>> ring.allreduce(tf.constant(ring.rank() + 1), op="max").numpy()
        np.int32(2)
    """

    SUM = "sum"
    AVERAGE = "average"
    """The sum divided by the number of ranks; floating-point types only."""
    MIN = "min"
    """The least. On GPUs a NaN may be lost, on CPUs the result is NaN."""
    MAX = "max"
    """The largest; of a NaN see `MIN`."""
    PRODUCT = "product"
    ADASUM = "adasum"
    """The adaptive sum: see `ring_keras.allreduce`; of gradients mostly."""

    def __str__(self) -> str:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> None:
        names = ", ".join(repr(member.value) for member in cls)
        raise ValueError(
            f"`op` must be a ring_keras.ReduceOp or one of {names}. "
            f"Received: op={value!r}"
        )


Sum = ReduceOp.SUM
Average = ReduceOp.AVERAGE
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM
