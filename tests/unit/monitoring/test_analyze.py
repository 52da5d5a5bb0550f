"""Which dumps belong together."""

from __future__ import annotations

from typing import Any

from ring_keras.monitoring.analyze.trace_file import Trace
from ring_keras.monitoring.analyze.verdict import explain


def trace(rank: int, at: float, why: str, name: str, size: int = 4) -> Trace:
    pending: dict[str, Any] = {
        **{"kind": "allreduce", "name": name, "step": 10, "missing": []},
        **{"submitted_at": at, "arrived_at": at},
    }
    return Trace(rank, size=size, why=why, time=at, pending=[pending])


def test_who_was_killed_is_in_nothing_that_it_wrote_of_before() -> None:
    lost = "rank 1 (host a, pid 7) was killed by SIGKILL"
    traces = {rank: trace(rank, 9000.0, lost, "b") for rank in (0, 2, 3)}
    traces[1] = trace(1, 1000.0, "stall", "a")

    assert explain(traces) == (
        f"Rank 1 wrote only an earlier dump ({lost}); ranks 0, 2 and 3 are in "
        "allreduce 'b' of step 10."
    )


def test_a_loss_soon_after_a_stall_is_told_from_it() -> None:
    lost = "rank 1 (host a, pid 7) was killed by SIGKILL"
    traces = {rank: trace(rank, 1002.0, lost, "b") for rank in (0, 2, 3)}
    traces[1] = trace(1, 1000.0, "stall", "b")

    assert explain(traces).startswith(f"Rank 1 wrote only an earlier dump ({lost})")


def test_files_of_a_larger_job_before_are_left_out() -> None:
    traces = {rank: trace(rank, 9000.0, "stall", "b", size=2) for rank in range(2)}
    traces[2] = trace(2, 8999.0, "stall", "a", size=3)

    assert explain(traces) == "Ranks 0 and 1 are in allreduce 'b' of step 10."
