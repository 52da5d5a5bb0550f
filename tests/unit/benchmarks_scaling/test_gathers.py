"""Closed forms of what allgathers send."""

from __future__ import annotations

import pytest

from benchmarks.scaling.costs import Cost
from benchmarks.scaling.gathers import (
    across,
    announced,
    around,
    picked,
    posted,
    side_by_side,
)


@pytest.mark.parametrize("hosts", [2, 3, 16, 1000])
def test_with_a_rank_a_host_both_ways_send_the_least_possible(hosts: int) -> None:
    for way in (around, across):
        assert way(hosts, 1, 100).wire_bytes == (hosts - 1) * 100


def test_across_takes_few_trips_and_all_ranks_of_a_host_to_the_link() -> None:
    ring, circle = around(1024, 4, 10), across(1024, 4, 10)

    assert (ring.trips, ring.wire_bytes) == (4095, 40_950)
    assert (circle.trips, circle.messages) == (12, 24)
    # Distances 1 and 2 cross hosts from one and from two of four; all others do.
    assert circle.wire_bytes == 10 * (1 + 2 * 2 + 4 * (4096 - 4))


def test_long_messages_and_few_hosts_go_around() -> None:
    kib = 1 << 10

    assert picked(8, 1, 1) == around(8, 1, 1)
    assert picked(9, 1, 128 * kib) == across(9, 1, 128 * kib)
    assert picked(9, 1, 128 * kib + 1) == around(9, 1, 128 * kib + 1)
    assert picked(9, 4, 32 * kib + 1) == around(9, 4, 32 * kib + 1)


def test_posts_tell_of_all_rows() -> None:
    cost = posted(4096, 1)

    assert (cost.trips, cost.messages) == (12, 12)
    assert cost.wire_bytes == 8 * 4095
    assert announced(4096, 1).messages == 4095


def test_side_by_side_work_adds_up_and_trips_do_not() -> None:
    both = side_by_side(Cost(trips=3, messages=5), Cost(trips=2, messages=7))

    assert (both.trips, both.messages) == (3, 12)
