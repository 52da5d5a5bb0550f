"""What processes say of the generation that a lost launcher has begun last."""

from __future__ import annotations

from ring_keras.launch.last_generation import Found, last_generation
from ring_keras.launch.workers import Worker


def found(
    number: int, generation: int = 0, rank: int = 0, members: tuple[int, ...] = ()
) -> Found:
    place = {
        "generation": generation,
        "rank": rank,
        "members": list(members),
        "changes": generation - 1,
        "started": 1 + max(members, default=0),
        "late": False,
    }
    worker = Worker(number, "a", lambda _number: None)
    told = place if generation else None
    return Found(worker, lambda _answer: None, None, told)


def test_members_come_in_their_order() -> None:
    members = (7, 2, 4)
    all_found = [found(2, 3, 1, members), found(7, 3, 0, members), found(9)]

    last = last_generation(all_found)

    assert (last.number, last.changes, last.started) == (3, 2, 10)
    assert [one.worker.rank for one in last.members] == [7, 2]
    assert [one.worker.rank for one in last.others] == [9]
    assert last.ranks == {7: 0, 2: 1, 4: 2}


def test_those_that_were_not_told_are_members_too() -> None:
    # The launcher was lost once it had told the first.
    all_found = [
        found(0, 2, 0, (0, 3, 1)),
        found(1, 1, 1, (0, 1, 2)),
        found(2, 1, 2, (0, 1, 2)),
        found(3),
    ]

    last = last_generation(all_found)

    assert [one.worker.rank for one in last.members] == [0, 3, 1]
    assert [one.worker.rank for one in last.others] == [2]


def test_all_shall_be_in_the_first() -> None:
    last = last_generation([found(1), found(0)])

    assert last.number == 0
    assert [one.worker.rank for one in last.members] == [0, 1]
    assert last.ranks == {}
