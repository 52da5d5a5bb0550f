"""Which rank's failure was the cause of the others', and how to say it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ring_keras.launch.workers import Worker, exit_status, how_ended

RANK_FAILED = "RK801"
"""The code of a rank that ended by itself: what it printed says why."""
_KILLED = "RK802"
_OUT_OF_MEMORY = "RK803"
_HOST_LOST = "RK804"
_SILENT = "RK805"

_TOLD = "[RK310]"
"""In what a rank said as it left: it was told of another's error."""


@dataclass(frozen=True)
class Verdict:
    """How a job ended: ringrun's exit code, and why, or None if all is well."""

    exit_code: int
    message: str | None


def judge(
    workers: Sequence[Worker],
    ended_ranks: Sequence[tuple[int, str, bool]],
    hung: Collection[int],
) -> Verdict:
    """Finds the first failure of a job that has ended without being told to.

    A rank that fails takes others along: they raise PeerLostError, and one of
    them may even be the first to exit. The store has seen who left first. Those that
    were told of another's error, and ended by it, may have left before that one.

    Args:
        workers: All ranks, ended.
        ended_ranks: The store's list, oldest first: rank, description, and
            whether the rank was lost rather than left.
        hung: Ranks that the store had given up before we stopped them.
    """
    order = {rank: position for position, (rank, _, _) in enumerate(ended_ranks)}
    descriptions = {rank: text for rank, text, _ in ended_ranks}
    culprits = [w for w in workers if w.failed or w.rank in hung]
    if not culprits:
        return Verdict(0, None)
    last = len(order)
    first = min(
        culprits,
        key=lambda worker: (
            _TOLD in descriptions.get(worker.rank, ""),
            order.get(worker.rank, last),
            worker.ended_at or 0.0,
        ),
    )
    assert first.returncode is not None
    if first.lost_with is not None:
        code, text = _HOST_LOST, first.lost_with
    elif first.failed:
        who = f"rank {first.rank} (host {first.host_name}, pid {first.pid})"
        text = f"{who} {how_ended(first.returncode)} after {first.seconds:.1f} s"
        text += first.remark
        code = _code(first)
    else:
        code, text = _SILENT, descriptions[first.rank]
    if any(worker.told_to_stop for worker in workers if worker is not first):
        text += "; the other ranks were stopped"
    elif len(workers) > 1:
        text += "; the other ranks have ended too"
    return Verdict(exit_status(first.returncode) or 1, f"[{code}] {text}")


def _code(worker: Worker) -> str:
    if "OOM killer chose it" in worker.remark:
        return _OUT_OF_MEMORY
    assert worker.returncode is not None
    return _KILLED if worker.returncode < 0 else RANK_FAILED
