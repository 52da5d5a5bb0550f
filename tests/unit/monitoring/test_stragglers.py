"""Who holds the others up, and why, from rows with a known cause."""

from __future__ import annotations

import numpy as np
import pytest
from support.synthetic_run import even, slow_compute, slow_input, updates

from ring_keras.monitoring.history import History
from ring_keras.monitoring.links import Link
from ring_keras.monitoring.rows import Row, Update
from ring_keras.monitoring.sentences import headline
from ring_keras.monitoring.stragglers import find_stragglers


def described(series):
    history = History.of(series)
    found = find_stragglers(history)
    return found, headline(history, found)


def test_nobody():
    found, sentence = described(updates(even))
    assert found == []
    assert sentence.startswith("No rank holds the others up: the ranks compute 9")


@pytest.mark.parametrize("size", [2, 4, 256])
def test_slow_compute(size):
    slow = min(3, size - 1)

    def costs(rank, step):
        return (0.070 if rank == slow and step >= 1200 else 0.050), 0.001

    [one], sentence = described(updates(costs, size=size, count=150))
    assert (one.rank, one.reason, one.since_step) == (slow, "compute", 1191)
    assert one.lost_s == pytest.approx(0.020, rel=0.1)
    assert one.own_s / one.median_s == pytest.approx(1.4, rel=0.02)
    host = "ab"[slow * 2 // size]
    assert sentence == (
        f"Rank {slow} (host {host}) is slow: its compute takes 1.4 x the median since "
        f"step 1,191; the others wait {one.lost_s * 1e3:.0f} ms a step for it."
    )


def test_slow_input():
    [one], sentence = described(updates(slow_input))
    assert (one.rank, one.reason, one.since_step) == (1, "input", 491)
    assert sentence.startswith(
        "Rank 1 (host a) is slow: it waits 40 ms a step for its input, where others "
        "wait 1.0 ms, since step 491; the others wait "
    )


def test_a_rank_that_is_disturbed_now_and_then():
    random = np.random.default_rng(2)
    disturbed = set(10 * random.choice(400, 120, replace=False))

    def costs(rank, step):
        return (0.100 if rank == 2 and step in disturbed else 0.050), 0.001

    [one], sentence = described(updates(costs, count=400))
    assert (one.rank, one.reason) == (2, "noisy neighbour")
    assert "now and then" in sentence


def test_who_costs_little_beside_the_first_is_left_out():
    def costs(rank, step):
        return 0.050 + {1: 0.050, 2: 0.004}.get(rank, 0.0), 0.001

    series = updates(costs, count=20)
    # Rank 2 is the last one in a step of ten, and the others wait 4 ms for it.
    for update in series:
        update.rows[0].waited_for_s[2] = 0.012
        update.rows[3].waited_for_s[2] = 0.012
    [one], sentence = described(series)
    assert one.rank == 1
    assert "its compute takes 2.0 x the median from the beginning; the" in sentence


def test_a_wait_that_nothing_explains():
    # It computes as long as the others, and yet they wait for it.
    rows = tuple(
        Row(
            rank, "a", 10, 1.0, 0.0, 0.7, 0.3, waited_for_s={2: 0.3} if rank < 2 else {}
        )
        for rank in range(3)
    )
    [one], sentence = described([Update(10 * n, float(n), rows) for n in range(1, 9)])
    assert (one.rank, one.reason) == (2, "unknown")
    assert "does not say why" in sentence


def test_slow_link():
    def links(rank, step):
        slow = rank == 1 and step >= 1000
        # Beside it one for small messages, which are slow everywhere.
        small = Link(rank, (rank + 2) % 4, 4_000, 0.1)
        return small, Link(rank, (rank + 1) % 4, 40_000_000, 4.0 if slow else 0.1)

    [one], sentence = described(updates(even, exposed_s=0.080, links=links))
    assert (one.rank, one.peer, one.reason) == (1, 2, "slow link")
    assert one.since_step == 991
    assert sentence == (
        "The link from rank 1 (host a) to rank 2 (host b) is slow: 10 MB/s where other "
        "links have 400 MB/s since step 991; it costs every rank 78 ms a step."
    )


def test_a_slow_link_that_no_step_waits_for():
    def links(rank, step):
        return (Link(rank, (rank + 1) % 4, 40_000_000, 4.0 if rank == 1 else 0.1),)

    found, _ = described(updates(even, exposed_s=0.0, links=links))
    assert found == []


def test_one_rank_waits_for_nobody():
    found, sentence = described(updates(even, size=1))
    assert found == []
    assert sentence.startswith("One rank trains: it computes ")


def test_nothing_yet():
    found, text = described([])
    assert found == []
    assert text == "No step has been measured yet."


def test_a_rank_that_left():
    series = updates(slow_compute)
    # The slow one is there no more.
    series += [
        Update(u.step + 2000, u.time + 120, u.rows[:3]) for u in updates(even, count=50)
    ]
    history = History.of(series)
    assert history.ranks == (0, 1, 2, 3)
    assert np.isnan(history.compute[-1, 3])
    assert find_stragglers(history) == []
