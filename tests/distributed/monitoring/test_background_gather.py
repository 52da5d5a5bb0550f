"""What ranks gather while they go on."""

from __future__ import annotations

import time

from support.rank_pool import RankPools

import ring_keras as ring
from ring_keras.monitoring.background_gather import BackgroundGather

DEADLINE_S = 30.0


def pending_gathers() -> int:
    return sum(
        one.kind == "allgather" and one.outcome == "pending"
        for one in ring.monitoring.recent_collectives()
    )


def two_gather_at_once() -> tuple[list[bytes], list[bytes]]:
    received: tuple[list[bytes], list[bytes]] = ([], [])

    def gather_into(found: list[bytes]) -> BackgroundGather:
        return BackgroundGather(
            "of this test",
            ring.global_process_set.communicator_id(),
            lambda gathered: found.extend(content for _, content in gathered),
            lambda error: None,
        )

    first, second = map(gather_into, received)
    if ring.rank() == 0:
        # The second one begins before the first one comes to what it was given next.
        first.put(b"first")
        first.put(b"next")
        second.put(b"second")
        deadline = time.monotonic() + DEADLINE_S
        while pending_gathers() < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert pending_gathers() == 2
    ring.barrier()
    if ring.rank() == 1:
        first.put(b"first")
        first.put(b"next")
        second.put(b"second")
    first.close(DEADLINE_S)
    second.close(DEADLINE_S)
    return received


def test_two_that_gather_at_once_do_not_meet(rank_pool: RankPools) -> None:
    for first, second in rank_pool(2).run(two_gather_at_once, timeout_s=90):
        assert first == [b"first", b"first", b"next", b"next"]
        assert second == [b"second", b"second"]
