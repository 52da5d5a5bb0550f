"""Of two launchers that do not hear each other, one at most goes on."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from ring_keras.launch.majority import are_enough, minority_problem


def hello(
    size: int,
    running: list[int],
    ended: list[int] | None = None,
    generation: int = 1,
    alone: bool = True,
) -> dict[str, Any]:
    return {
        "generation": generation,
        "members": list(range(size)),
        "running": running,
        "ended": ended or [],
        "alone": alone,
    }


@pytest.mark.parametrize(
    "hellos",
    [
        [hello(3, [1]), hello(3, [2])],
        [hello(2, [0])],
        [hello(4, [0, 2])],
        # A host that has come since, and one that was in an earlier generation.
        [hello(3, [0, 1], generation=2), hello(9, [8]), hello(0, [], generation=0)],
        [hello(2, [1], ended=[0])],
        [hello(2, [], ended=[0, 1])],
        [hello(0, [], generation=0)] * 3,
        # The launcher was lost before it had told all of the next generation.
        [hello(6, [0, 1], generation=2), hello(6, [2, 3]), hello(6, [4, 5])],
        [hello(4, [0, 1], generation=2), hello(0, [3], generation=0)],
    ],
)
def test_enough(hellos: list[dict[str, Any]]) -> None:
    assert minority_problem(hellos, agents=3) is None


@pytest.mark.parametrize(
    ("hellos", "said"),
    [
        ([hello(3, [0])], "have 1 ranks of generation 1, and 2 may be elsewhere"),
        ([hello(2, [1])], "and 1 may be elsewhere"),
        ([hello(4, [1], ended=[2])], "and 2 may be elsewhere"),
        ([hello(4, [], ended=[0])], "have 0 ranks"),
        ([hello(3, [0, 1], alone=False), hello(3, [2])], "have 1 ranks"),
        ([hello(3, [0, 1, 2], alone=False)], "all agents that are there hear a"),
        ([hello(0, [], generation=0)] * 2, "2 of 3 agents are there"),
        # Those that are in none any more do not count.
        ([hello(4, [0], generation=2), hello(9, [5, 6, 7])], "have 1 ranks of"),
    ],
)
def test_too_few(hellos: list[dict[str, Any]], said: str) -> None:
    assert said in str(minority_problem(hellos, agents=3))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_two_sides_never_go_on_both(size: int) -> None:
    # Each rank runs on one side, or has ended, which either side may know or not.
    kinds = ["a", "b", "", "known a", "known b", "known ab"]
    for states in product(kinds, repeat=size):
        enough = []
        for side in "ab":
            running = {rank for rank in range(size) if states[rank] == side}
            known = sum(s.startswith("known") and side in s[5:] for s in states)
            enough.append(are_enough(running, size - len(running) - known))
        assert enough != [True, True], states
