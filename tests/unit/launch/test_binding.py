"""Processors are shared out whole, together, and to one rank each."""

import os

import pytest

from ring_keras.launch.binding import Processor, allowed_processors, share_out


def two_nodes() -> list[Processor]:
    """Two nodes of two cores of two threads, numbered as machines number them."""
    return sorted(
        Processor(
            node=core // 2, package=core // 2, core=core, number=core + 4 * thread
        )
        for core in range(4)
        for thread in range(2)
    )


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, [(0, 4, 1, 5, 2, 6, 3, 7)]),
        (2, [(0, 4, 1, 5), (2, 6, 3, 7)]),
        (3, [(0, 4), (1, 5), (2, 6)]),
        (4, [(0, 4), (1, 5), (2, 6), (3, 7)]),
        (8, [(0,), (4,), (1,), (5,), (2,), (6,), (3,), (7,)]),
    ],
)
def test_neighbours_go_together(ranks, expected):
    assert share_out(two_nodes(), ranks) == expected


def test_ranks_that_outnumber_processors_share_them_evenly():
    shares = share_out(two_nodes()[:2], 4)

    assert shares == [(0,), (0,), (4,), (4,)]


def test_the_processors_are_those_that_this_process_may_use():
    numbers = {processor.number for processor in allowed_processors()}

    assert numbers == os.sched_getaffinity(0)
