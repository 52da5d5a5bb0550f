"""One copy of an array for all ranks of a host."""

import hashlib
import itertools
import os
from typing import Any

import numpy as np
from absl import logging

from ring_keras.data.memory_layout import (
    arrays_in,
    describe,
    digest_of,
    write_arrays,
)
from ring_keras.data.shared_memory import SharedMemory
from ring_keras.errors import RankMismatchError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.lifecycle.elastic_launcher import is_elastic, is_late
from ring_keras.network.host_id import host_id
from ring_keras.values.objects import allgather_object
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["shared_array"]

_CALL = "data.shared_array"
# For as long as a process lives, as its line to the launcher of an elastic job.
_calls = itertools.count()


def shared_array(source: Any, *, process_set: ProcessSet | None = None) -> Any:
    """Holds arrays in memory once per host, for all of its ranks.

    It is a collective. On each host the first rank loads the data, and the others map
    the same memory:

    ```python
    x, y = ring.data.shared_array(lambda: load_images("train"))
    x = ring.data.shared_array("train.npy")
    ```

    Examples:
        >>> shared = ring.data.shared_array(lambda: x)
        >>> shared.shape
        (32, 2)

    Args:
        source: One of these. Only the first rank of each host uses it.

            - A function without arguments that returns the data. It must not
              communicate with other ranks.
            - The path of a `.npy` file, or of a `.npz` file, which gives a dict.
            - The data themselves.

            Data are an array, or tuples, lists and dicts of arrays. They are copied
            into the shared memory. If memory has no room for both, let the function
            return an `np.memmap`, or give the path of a `.npy` file.
        process_set: Ranks that share the data. On each host the first of them loads.
            Defaults to all.

    Returns:
        Read-only NumPy arrays, structured as the data. The memory is freed when no
        process of the host holds any of them, or a view of one. TensorFlow makes
        tensors of them, and of their rows `x[a:b]`, without a copy.

    Raises:
        TypeError: If the data have parts that are no arrays of plain values.
        RankMismatchError: On every rank, if loading fails, or if two hosts have
            different data. Shapes, dtypes and a few pages are compared.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If loading takes longer than
            `RING_KERAS_COLLECTIVE_TIMEOUT_S`.
    """
    process_set = process_set or global_process_set
    key = _key(source)
    if is_late():  # The others have begun long ago, and do not answer.
        return arrays_in(SharedMemory.find_on_host(key) or _load(source, key))
    place = process_set.rank()
    hosts = allgather_object(
        host_id(current_job().config.host_name),
        name=f"{_CALL}/hosts",
        process_set=process_set,
    )
    first = hosts.index(hosts[place])

    def load() -> tuple[SharedMemory | None, Any]:
        if place != first:
            return None, None
        memory = _load(source, key)
        return memory, [memory.place, describe(memory), digest_of(memory)]

    memory, loaded = gather_outcomes(_CALL, load, process_set)
    _require_same(loaded, process_set)

    def attach() -> tuple[SharedMemory, None]:
        if memory is not None:
            return memory, None
        try:
            return SharedMemory.attach(loaded[first][0]), None
        except OSError as error:
            logging.warning(
                "ring_keras.%s: rank %d loads a copy of its own, as it cannot map that "
                "of rank %d, which is on the same host: %s",
                *(_CALL, process_set.ranks[place], process_set.ranks[first], error),
            )
            return _load(source, key), None

    # Until all have it, the first one keeps it.
    mapped, _ = gather_outcomes(_CALL, attach, process_set)
    return arrays_in(mapped)


def _key(source: Any) -> str:
    """What a process that replaces a lost one finds the memory of its host by."""
    call = next(_calls)
    if not is_elastic():
        return "-"
    if callable(source):
        source = getattr(source, "__qualname__", type(source).__name__)
    elif not isinstance(source, (str, os.PathLike)):
        source = "arrays"
    socket = current_job().config.elastic_socket
    return hashlib.sha256(f"{socket} {call} {source}".encode()).hexdigest()[:16]


def _load(source: Any, key: str) -> SharedMemory:
    if callable(source):
        data = source()
    elif isinstance(source, (str, os.PathLike)):
        data = np.load(source, mmap_mode="r", allow_pickle=False)
        if isinstance(data, np.lib.npyio.NpzFile):
            with data:
                data = dict(data)
    else:
        data = source
    return SharedMemory.create(key, lambda file: write_arrays(data, file))


def _require_same(loaded: list[Any], process_set: ProcessSet) -> None:
    """Of the ranks that have loaded."""
    having = [
        (rank, words, digest)
        for rank, (_, words, digest) in (
            (rank, one)
            for rank, one in zip(process_set.ranks, loaded, strict=True)
            if one is not None
        )
    ]
    first, words, digest = having[0]
    for rank, theirs, their_digest in having[1:]:
        if their_digest != digest:
            other = theirs if theirs != words else "others of the same shapes"
            raise RankMismatchError(
                "[RK329] "
                f"ring_keras.{_CALL}: the data differ across hosts: rank {first} has "
                f"loaded {words}, rank {rank} {other}. Have the first rank of each "
                "host load the same, or give the ranks of each host a `process_set`."
            )
