"""Decisions that all ranks take alike."""

from typing import Any

import tensorflow as tf

from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.allreduce import allreduce
from ring_keras.values.reduce_op import Max, Min, ReduceOp

__all__ = ["all", "any"]


def any(
    value: Any, *, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """Whether something holds on at least one rank.

    Use it if one rank notices something and all must act, such as a full disk:

    ```python
    if ring.any(disk_is_full()):
        break
    ```

    Examples:
        >>> disk_is_full = ring.rank() == 1
        >>> ring.any(disk_is_full)
        True

    Args:
        value: A bool, or a scalar tensor of bool.
        name: See `allreduce`. Defaults to "any".
        process_set: Ranks taking part. Defaults to all.

    Returns:
        The same on every rank: a bool; inside a `tf.function`, a tensor.

    Raises:
        TypeError: If `value` is neither.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent too long.
    """
    return _decision(value, Max, name or "any", process_set)


def all(
    value: Any, *, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """Whether something holds on every rank.

    Examples:
        >>> is_ready = ring.rank() == 1
        >>> ring.all(is_ready)
        False

    Args:
        value: See `any`.
        name: See `allreduce`. Defaults to "all".
        process_set: Ranks taking part. Defaults to all.

    Returns:
        As `any`.

    Raises:
        TypeError: If `value` is neither. The other errors are those of `any`.
    """
    return _decision(value, Min, name or "all", process_set)


def _decision(
    value: Any, op: ReduceOp, name: str, process_set: ProcessSet | None
) -> Any:
    flag = tf.convert_to_tensor(value)
    if flag.dtype != tf.bool or flag.shape.rank != 0:
        raise TypeError(
            "ring_keras.any and ring_keras.all take a bool, or a scalar tensor of "
            f"bool. Received: {value!r}"
        )
    held = allreduce(flag, op=op, name=name, process_set=process_set)
    return bool(held) if tf.executing_eagerly() else held
