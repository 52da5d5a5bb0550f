"""Which of two launchers that do not hear each other may go on: one at most.

Who has more than half of the ranks of the last generation, or half and rank 0. Those
that are known to have ended count with neither: see
docs/design/0054-a-launcher-that-can-be-lost.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

__all__ = ["are_enough", "minority_problem"]


def are_enough(running: Collection[int | None], elsewhere: int) -> bool:
    """Whether these ranks may go on if so many others may run elsewhere."""
    return len(running) > elsewhere or (len(running) == elsewhere and 0 in running)


def minority_problem(hellos: Sequence[Mapping[str, Any]], agents: int) -> str | None:
    """Why a launcher may not go on with the agents that it reaches; None: it may.

    Args:
        hellos: What they have said at first: see `RankKeeper.facts`.
        agents: How many there are on the card.
    """
    alone = [hello for hello in hellos if hello.get("alone")]
    if not alone:
        return "all agents that are there hear a launcher"
    last = max(hello["generation"] for hello in alone)
    if last == 0 and len(alone) == agents:
        return None
    if last == 0:  # Nobody has begun to train, so none could be left out.
        return (
            f"{len(alone)} of {agents} agents are there, and hear no other launcher; "
            "before the ranks have met for the first time all must be"
        )
    # A launcher may have been lost before it had told all of them.
    members = next(h["members"] for h in alone if h["generation"] == last)
    running = _ranks_of(members, alone, "running")
    elsewhere = len(members) - len(running) - len(_ranks_of(members, alone, "ended"))
    if not elsewhere or are_enough(running, elsewhere):
        return None
    return (
        f"agents that are there, and hear no other launcher, have {len(running)} ranks "
        f"of generation {last}, and {elsewhere} may be elsewhere; without more than "
        "half, or half and rank 0, this launcher does not go on. `ringrun --take-over "
        "FILE` alone does: give it only if no other launcher has the rest"
    )


def _ranks_of(
    members: Sequence[int], hellos: Sequence[Mapping[str, Any]], state: str
) -> set[int]:
    """Which ranks of a generation are in that state on hosts that say so."""
    processes = {number for hello in hellos for number in hello[state]}
    return {rank for rank, number in enumerate(members) if number in processes}
