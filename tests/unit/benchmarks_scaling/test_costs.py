"""Closed forms of what algorithms send."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.scaling.costs import (
    Cost,
    cost_of,
    hierarchical,
    hierarchical_in_16_bits,
    names,
    posts,
)

MIB = 1 << 20


def every_layout() -> list[tuple[int, int]]:
    return [(1, 2), (1, 4), (2, 1), (3, 1), (16, 1), (2, 2), (128, 4), (1024, 4)]


def test_one_rank_does_nothing() -> None:
    for name in names(1, 1):
        assert cost_of(name, 1, 1, MIB) == Cost()


@pytest.mark.parametrize("size", [2, 3, 4, 16, 1000])
@pytest.mark.parametrize("name", ["parts", "halving", "ring"])
def test_all_but_doubling_send_the_least_possible(name: str, size: int) -> None:
    cost = cost_of(name, size, 1, MIB)

    assert cost.wire_bytes == pytest.approx(2 * (size - 1) / size * MIB)


@pytest.mark.parametrize(
    ("name", "trips", "wire_bytes"),
    [
        # Posts take three trips.
        ("direct", 3, 7),
        ("doubling", 3 + 3, 3),
        ("parts", 3 + 2, 1.75),
        ("halving", 3 + 2 * 3, 1.75),
        # Two levels besides the first, each two chunks of half the data up and down.
        ("trees", 3 + 2 * 3, 2 + 4 * 2 / 2),
        ("ring", 3 + 14, 1.75),
    ],
)
def test_eight_ranks(name: str, trips: int, wire_bytes: float) -> None:
    cost = cost_of(name, 8, 1, 1000)

    assert cost.trips == trips
    assert cost.wire_bytes == wire_bytes * 1000


def test_doubling_takes_two_trips_more_beside_a_power_of_two() -> None:
    trips = {size: cost_of("doubling", size, 1, 1).trips for size in (2, 3, 4, 5, 8)}

    assert trips == {2: 1 + 1, 3: 2 + 3, 4: 2 + 2, 5: 3 + 4, 8: 3 + 3}


def test_halving_takes_two_trips_for_each_doubling_of_the_ranks() -> None:
    trips = {size: cost_of("halving", size, 1, 1).trips for size in (2, 3, 4, 5, 8, 9)}

    assert trips == {2: 1 + 2, 3: 2 + 4, 4: 2 + 4, 5: 3 + 6, 8: 3 + 6, 9: 4 + 8}


def test_lanes_of_many_hosts_take_few_trips() -> None:
    few, many = cost_of("hierarchical", 8, 4, MIB), cost_of("hierarchical", 512, 4, MIB)

    # Two of parts, with a message to each other member; two for each of nine halvings;
    # and those of the posts.
    assert (few.trips, few.messages) == (3 + 2, 3 + 2 * 7)
    assert (many.trips, many.messages) == (9 + 2 * 9, 9 + 2 * 9)


def test_messages_of_large_data_go_in_pieces() -> None:
    one_piece = 2 * 128 * 1024

    assert cost_of("ring", 2, 1, one_piece).messages == 1 + 2
    assert cost_of("ring", 2, 1, 10 * one_piece).messages == 1 + 20


def test_a_hierarchy_sends_once_per_host() -> None:
    flat, deep = cost_of("ring", 4, 1, MIB), cost_of("hierarchical", 4, 8, MIB)

    # Of one host, whose link its ranks share.
    assert deep.wire_bytes == pytest.approx(flat.wire_bytes)
    assert deep.copied_bytes == pytest.approx(flat.copied_bytes / 8)
    assert deep.near_bytes + deep.far_bytes > 0


def test_ranks_that_send_to_all_load_their_hosts_link() -> None:
    # 4 ranks, each to the 4 on the other host.
    assert cost_of("direct", 2, 4, 10).wire_bytes == 4 * 4 * 10


def test_on_one_host_nothing_is_sent() -> None:
    for name in names(1, 4):
        cost = cost_of(name, 1, 4, MIB)
        assert (cost.trips, cost.messages, cost.wire_bytes) == (0, 0, 0)


def test_flat_reads_everything_and_parts_do_not() -> None:
    touched = {
        size: [cost_of(name, 1, size, 1000).near_bytes for name in names(1, size)]
        for size in (4, 64)
    }

    assert touched[64][0] == 67_000
    assert touched[64][1] < touched[4][1] < touched[4][0]


@pytest.mark.parametrize("layout", every_layout())
def test_more_bytes_never_cost_less(layout: tuple[int, int]) -> None:
    for name in names(*layout):
        costs = [cost_of(name, *layout, 1 << power) for power in range(0, 28, 3)]
        for less, more in itertools.pairwise(costs):
            assert more.wire_bytes >= less.wire_bytes
            assert more.messages >= less.messages
            assert more.copied_bytes >= less.copied_bytes
            assert more.near_bytes + more.far_bytes >= less.near_bytes + less.far_bytes


def test_more_hosts_never_cost_less() -> None:
    for per_host in (1, 4):
        for name in names(2, per_host):
            costs = [cost_of(name, 1 << power, per_host, MIB) for power in range(1, 11)]
            for fewer, more in itertools.pairwise(costs):
                assert more.wire_bytes >= fewer.wire_bytes
                assert more.trips >= fewer.trips


def test_16_bits_halve_what_goes_between_hosts_alone() -> None:
    whole, half = (one(4, 8, MIB) for one in (hierarchical, hierarchical_in_16_bits))

    assert half.wire_bytes == pytest.approx(whole.wire_bytes / 2)
    assert half.near_bytes + half.far_bytes == whole.near_bytes + whole.far_bytes
    assert hierarchical_in_16_bits(1, 8, MIB) == hierarchical(1, 8, MIB)


def test_16_bits_go_by_parts_however_many_hosts_there_are() -> None:
    # Two rounds of 16 MiB, in each a message to and from each other host.
    cost = hierarchical_in_16_bits(128, 4, 32 * MIB)

    assert cost.messages - posts(128, 4).messages == 2 * 2 * 127
    assert cost.trips - posts(128, 4).trips == 2
