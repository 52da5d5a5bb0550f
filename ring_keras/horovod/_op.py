"""Which reduction is meant, by Horovod's newer argument or its older one."""

from ring_keras.values.reduce_op import Average, ReduceOp, Sum

__all__ = ["to_op"]


def to_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The reduction that `op`, or Horovod's older `average`, asks for."""
    if op is not None and average is not None:
        raise ValueError(
            "`op` takes the place of `average`: give one of them. "
            f"Received: op={op!r}, average={average!r}"
        )
    if op is not None:
        return op
    return Sum if average is False else Average
