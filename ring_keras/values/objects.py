"""Collectives on plain Python values.

Values travel in the form of `ring_keras.values.encoding`, inside collectives among
ranks that have proved that they know the job's token. Nothing is pickled, so
no rank runs what another one sent.
"""

from typing import Any

import numpy as np

from ring_keras import _native
from ring_keras.errors import RingKerasError
from ring_keras.job.gathering import gather_bytes, name_of_first
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.encoding import decode, encode

__all__ = ["allgather_object", "broadcast_object", "gather_from_each"]

# What no value is encoded as: the sender could not encode its own.
_FAILED = b""


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Sends a value from one rank to all.

    Examples:
        >>> settings = {"units": 128} if ring.rank() == 0 else None
        >>> ring.broadcast_object(settings)
        {'units': 128}

    Args:
        obj: Plain values: None, bool, numbers, str, bytes, NumPy arrays, lists,
            tuples, dicts and sets of these; tensors arrive as NumPy arrays, and a
            scalar of text as bytes.
            Only the root's value is used.
        root_rank: The rank of the whole job that sends.
        name: See `allreduce`. Defaults to "broadcast_object".
        process_set: Ranks taking part. Defaults to all.

    Returns:
        The root's value: `obj` itself on the root, a copy on the other ranks.

    Raises:
        TypeError: On the root, if `obj` holds anything but plain values.
        RingKerasError: On the others then.
        RankMismatchError: If the ranks disagree on the root.
        PeerLostError: If a rank died or left.
    """
    process_set = process_set or global_process_set
    name = name or "broadcast_object"
    communicator_id = process_set.communicator_id()
    root = process_set.position_of(root_rank)
    is_root = process_set.rank() == root

    encoded, failure = _try_encode(obj) if is_root else (b"", None)
    length = np.array([len(encoded)], np.int64)
    length = _native.broadcast(length, root, name_of_first(name), communicator_id)
    if failure is not None:
        raise failure
    if length[0] == len(_FAILED):
        raise RingKerasError(
            "[RK310] "
            f"broadcast_object '{name}': rank {root_rank} could not encode its "
            "value; the error there says why."
        )
    content = np.zeros(int(length[0]), np.uint8)
    if is_root:
        content[:] = np.frombuffer(encoded, np.uint8)
    content = _native.broadcast(content, root, name, communicator_id)
    return obj if is_root else decode(content.tobytes())


def allgather_object(
    obj: Any,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[Any]:
    """Collects a value from every rank.

    Examples:
        >>> ring.allgather_object(f"shard-{ring.rank()}.npz")
        ['shard-0.npz', 'shard-1.npz']

    Args:
        obj: This rank's; see `broadcast_object`.
        name: See `allreduce`. Defaults to "allgather_object".
        process_set: Ranks taking part. Defaults to all.

    Returns:
        The values in the order of ranks, the same on every rank; none of ranks that are
        in `join()`.

    Raises:
        TypeError: If `obj` holds anything but plain values.
        RingKerasError: On the other ranks then.
        PeerLostError: If a rank died or left.
    """
    name = name or "allgather_object"
    return [value for _, value in _gather(obj, name, process_set or global_process_set)]


def gather_from_each(obj: Any, *, name: str, process_set: ProcessSet) -> list[Any]:
    """The same, where the value of a rank in `join()` would be missed.

    Raises:
        ValueError: If there is such a rank; on all that are in none.
    """
    gathered = _gather(obj, name, process_set)
    for rank in sorted(set(process_set.ranks) - {rank for rank, _ in gathered}):
        raise ValueError(
            f"[RK407] {name}: rank {rank} is in join(), in which it brings "
            "nothing of its own. Enter it before, or when join() has returned."
        )
    return [value for _, value in gathered]


def _gather(obj: Any, name: str, process_set: ProcessSet) -> list[tuple[int, Any]]:
    """The values of ranks that are not in `join()`, each with its rank."""
    encoded, failure = _try_encode(obj)
    gathered = gather_bytes(encoded, name, process_set.communicator_id())
    if failure is not None:
        raise failure
    for rank, content in gathered:
        if content == _FAILED:
            raise RingKerasError(
                "[RK310] "
                f"allgather_object '{name}': rank {rank} could not encode its "
                "value; the error there says why."
            )
    return [(rank, decode(content)) for rank, content in gathered]


def _try_encode(obj: Any) -> tuple[bytes, Exception | None]:
    """An error is reported once the other ranks know of it."""
    try:
        return encode(obj), None
    except Exception as error:
        return _FAILED, error
