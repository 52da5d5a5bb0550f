"""One rank's host has no more to give: descriptors, shared memory, addresses.

All ranks get the same error, which says what is lacking, or go on with right results.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import run_ranks
from support.faults.work import nothing_left

pytestmark = pytest.mark.slow

VICTIM = 1
SIZE = 3
SPARE_NBYTES = 4 << 20
# For files such as the token's.
FEW = 2


@contextlib.contextmanager
def soft_limit(what: int, value: int) -> Iterator[None]:
    before = resource.getrlimit(what)
    resource.setrlimit(what, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """A few more than there are; the limit stays, for nobody may lift it again."""
    spare = [os.dup(2) for _ in range(8)]
    lowest_free = os.dup(2)
    os.close(lowest_free)
    limit = lowest_free + FEW
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    try:
        yield
    finally:
        for descriptor in spare:
            os.close(descriptor)


def no_shared_memory() -> contextlib.AbstractContextManager[None]:
    """Files in memory may be no larger than a page; Python ignores the signal."""
    return soft_limit(resource.RLIMIT_FSIZE, resource.getpagesize())


def no_addresses() -> contextlib.AbstractContextManager[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return soft_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + SPARE_NBYTES)


LIMITS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "descriptors": no_descriptors,
    "shared memory": no_shared_memory,
    "addresses": no_addresses,
}
LACKING = {
    "descriptors": "^RingKerasError: .*(Too many open files|descriptors)",
    # What the engine's own thread lacks ends its process.
    "addresses": "(?i)memory|cannot start a thread|bad_alloc",
}
PLACES = ("before init", "before a collective", "before a process set")


def work(limit: str, place: str) -> str:
    import numpy as np

    import ring_keras as ring
    from ring_keras import _libraries, _native

    def meet(name: str) -> None:
        total = _native.allreduce(ones, "sum", name)
        assert (total == ring.size()).all()

    def set_limit(now: str) -> None:
        if place == now and int(os.environ["RING_KERAS_RANK"]) == VICTIM:
            limits.enter_context(LIMITS[limit]())

    ones = np.ones(1_000_000, np.float32)
    own_error, init = ring.RingKerasError, ring.init  # Imported while there is room.
    _libraries.ops()
    with nothing_left(), contextlib.ExitStack() as limits:
        try:
            set_limit("before init")
            init()
            meet("first")
            set_limit("before a collective")
            meet("second")
            set_limit("before a process set")
            ring.add_process_set([0, VICTIM])
            meet("third")
            meet("fourth")
        except (own_error, MemoryError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit(limit: str, place: str, transport: str) -> None:
    env = {"RING_KERAS_TRANSPORT": transport, "RING_KERAS_COLLECTIVE_TIMEOUT_S": "20"}

    outcomes = run_ranks(work, SIZE, env=env, args=(limit, place), check=False)

    # Who does without shared memory has printed a warning, and no more.
    told = [one.result if one.ok else one.stderr for one in outcomes]
    if not any(told):
        return  # It has done without.
    own = told.pop(VICTIM)
    assert re.search(LACKING[limit], own), own
    for other in told:
        assert re.search(rf"^PeerLostError: .*\brank {VICTIM}\b", other), other
