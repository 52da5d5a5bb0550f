"""Decisions that all ranks take alike."""

import hashlib
from typing import Any, TypeVar

import tensorflow as tf

from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.ops.allreduce import allreduce
from ring_keras.values.encoding import encode
from ring_keras.values.objects import allgather_object
from ring_keras.values.reduce_op import Max, Min, ReduceOp

__all__ = ["agree_on", "all", "any"]

_SHOWN = 60

_Value = TypeVar("_Value")


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


def agree_on(
    value: _Value, *, name: str | None = None, process_set: ProcessSet | None = None
) -> _Value:
    """Makes sure that all ranks have the same value.

    Use it for values that each rank computes and that must be equal, such as the
    classes in its files:

    ```python
    classes = ring.agree_on(sorted(os.listdir("images")), name="classes")
    ```

    If ranks may differ, and shall take one rank's value, use `broadcast_object`.

    Examples:
        >>> ring.agree_on(["cat", "dog"], name="classes")
        ['cat', 'dog']
        >>> ring.agree_on(ring.rank(), name="seed")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
            ...
        ring_keras.errors.RankMismatchError: ... the ranks' values differ: ...

    Args:
        value: Plain values; see `broadcast_object`. Types of numbers must agree, too.
        name: What the error calls it. Defaults to "agree_on".
        process_set: Ranks taking part. Defaults to all.

    Returns:
        `value`.

    Raises:
        RankMismatchError: On every rank, if the values differ. It says which rank has
            which value.
        TypeError: If `value` holds anything but plain values.
        RingKerasError: On the other ranks then.
        PeerLostError: If a rank died or left.
    """
    process_set = process_set or global_process_set
    name = name or "agree_on"
    everyones = allgather_object(_in_short(value), name=name, process_set=process_set)
    holders: dict[tuple[str, bytes], list[int]] = {}
    for rank, theirs in zip(process_set.ranks, everyones, strict=True):
        holders.setdefault(theirs, []).append(rank)
    if len(holders) > 1:
        said = ", ".join(
            f"ranks {held} have {text}" for (text, _), held in holders.items()
        )
        raise RankMismatchError(
            f"[RK317] ring_keras.agree_on '{name}': the ranks' values differ: {said}."
        )
    return value


def _in_short(value: Any) -> Any:
    """A few words, and what tells it from others."""
    try:
        encoded = encode(value)
    except (TypeError, ValueError):
        return value  # The collective refuses it, on all ranks.
    text = repr(value)
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    return shown, hashlib.sha256(encoded).digest()
