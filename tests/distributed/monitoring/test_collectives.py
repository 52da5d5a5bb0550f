"""What the engine notes of single collectives."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine_only import WITHOUT_TENSORFLOW, rank_and_size
from support.processes import wait_until
from support.rank_pool import RankPools

from ring_keras import _native


def records_of(name: str) -> list[dict[str, Any]]:
    return [one for one in _native.recent_collectives() if one["name"] == name]


def rank_1_comes_last(directory: str, use: str, nbytes: int) -> list[dict[str, Any]]:
    rank, _ = rank_and_size()
    array = np.ones(nbytes, np.uint8)
    # Announced twice, then through a channel where there is one.
    for turn in range(4):
        arrived = Path(directory, f"turn{turn}")
        if rank == 1:
            wait_until(arrived.exists, "rank 0 has arrived")
        call = threading.Thread(target=_native.allreduce, args=(array, "sum", use))
        call.start()
        if rank == 0:
            wait_until(
                lambda: any(
                    one["outcome"] == "pending" and one["arrived_at"]
                    for one in records_of(use)
                ),
                "this rank has arrived",
            )
            arrived.touch()
        call.join()
    return records_of(use)


@pytest.mark.parametrize("nbytes", [4, 100_000])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_the_last_rank_is_known_and_the_wait_is_measured(
    rank_pool: RankPools, tmp_path: Path, transport: str, nbytes: int
) -> None:
    pool = rank_pool(2, env=WITHOUT_TENSORFLOW | {"RING_KERAS_TRANSPORT": transport})
    use = f"last/{transport}/{nbytes}"
    first, last = pool.run(rank_1_comes_last, args=(str(tmp_path), use, nbytes))

    for records in (first, last):
        assert len(records) == 4
        for one in records:
            assert one["last_rank"] == 1
            assert (one["kind"], one["outcome"]) == ("allreduce", "ok")
            assert (one["bytes"], one["ranks"], one["step"]) == (nbytes, 2, 0)
            moments = [
                one[f"{moment}_at"]
                for moment in (
                    *("submitted", "arrived", "matched"),
                    *("first_byte", "last_byte", "done"),
                )
            ]
            assert moments == sorted(moments)
    for one, other in zip(first, last, strict=True):
        assert one["arrived_at"] < other["arrived_at"]
        assert one["arrived_at"] < one["matched_at"]
        assert abs(one["done_at"] - time.time()) < 3600


def sums_by_size(name: str) -> list[dict[str, Any]]:
    before = {key(one): one["count"] for one in _native.stats()["collectives"]}
    for _ in range(5):
        _native.allreduce(np.ones(50_000, np.uint8), "sum", name)
    _native.allgather(np.ones(10, np.uint8), name + "/gathered")
    return [
        one | {"count": one["count"] - before.get(key(one), 0)}
        for one in _native.stats()["collectives"]
        if one["count"] > before.get(key(one), 0)
    ]


def key(one: dict[str, Any]) -> tuple[str, str, int]:
    return one["kind"], one["algorithm"], one["size_class_bytes"]


def test_collectives_are_counted_by_algorithm_and_size(rank_pool: RankPools) -> None:
    for found in rank_pool(2, env=WITHOUT_TENSORFLOW).run(
        sums_by_size, args=("by_size",)
    ):
        counts = {key(one): one["count"] for one in found}
        assert counts == {
            ("allreduce", "shared_flat", 32768): 5,
            ("allgather", "shared", 8): 1,
        }
        reduced = next(one for one in found if one["kind"] == "allreduce")
        assert reduced["transfer_s"] > 0
        assert reduced["best_bus_bandwidth"] >= reduced["mean_bus_bandwidth"] > 0
