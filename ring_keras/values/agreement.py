"""Values that all ranks must have alike."""

import hashlib
from typing import Any, TypeVar

from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.encoding import encode
from ring_keras.values.objects import gather_from_each

__all__ = ["agree_on"]

_SHOWN = 60

_Value = TypeVar("_Value")


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
    everyones = gather_from_each(_in_short(value), name=name, process_set=process_set)
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
