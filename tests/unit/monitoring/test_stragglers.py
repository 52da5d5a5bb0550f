"""Who holds the others up, and why, from rows with a known cause."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from support.synthetic_run import even, slow_compute, slow_input, updates

from ring_keras.monitoring.history import History, Table
from ring_keras.monitoring.links import Link
from ring_keras.monitoring.rows import Row, Update
from ring_keras.monitoring.sentences import headline, remedy
from ring_keras.monitoring.stragglers import Reason, find_stragglers

ROOT_DIR = Path(__file__).parents[3]


def described(series):
    history = History.of(map(Table.of, series))
    found = find_stragglers(history)
    return found, headline(history, found)


def test_nobody():
    found, sentence = described(updates(even))
    assert found == []
    assert sentence.startswith("No rank holds the others up: the ranks compute 9")
    assert sentence.endswith(" of a step's 55 ms (steps 1,991 to 2,000).")


@pytest.mark.parametrize("size", [2, 4, 256])
def test_slow_compute(size):
    slow = min(3, size - 1)

    def costs(rank, step):
        return (0.070 if rank == slow and step >= 1200 else 0.050), 0.001

    [one], sentence = described(updates(costs, size=size, count=150))
    assert (one.ranks, one.reason, one.since_step) == ((slow,), "compute", 1191)
    assert one.lost_s == pytest.approx(0.020, rel=0.1)
    assert one.own_s / one.median_s == pytest.approx(1.4, rel=0.02)
    assert one.lost_in == (1191, 1500)
    host = "ab"[slow * 2 // size]
    assert sentence == (
        f"Rank {slow} (host {host}) is slow: its compute takes 1.4 x the median since "
        f"step 1,191; the others wait {one.lost_s * 1e3:.0f} ms a step for it."
    )


@pytest.mark.parametrize("reason", get_args(Reason))
def test_a_remedy_is_where_it_says(reason):
    [one], _ = described(updates(slow_compute))
    said = remedy(dataclasses.replace(one, reason=reason))
    page, heading = re.search(r': see (docs/\w+\.md), "(.*)"\.$', said).groups()
    lines = (ROOT_DIR / page).read_text().splitlines()
    assert f"## {heading}" in lines


def test_slow_input():
    [one], sentence = described(updates(slow_input))
    assert (one.ranks, one.reason, one.since_step) == ((1,), "input", 491)
    assert sentence.startswith(
        "Rank 1 (host a) is slow: it waits 40 ms a step for its input, where others "
        "wait 1.0 ms, since step 491; the others wait "
    )


def seconds_waited(series, first):
    """What the others waited for all stragglers together, seconds a step."""
    rows = [row for update in series[first:] for row in update.rows]
    waits = sum(sum(row.waited_for_s.values()) for row in rows)
    return waits / sum(row.steps for row in rows) * 4 / 3


@pytest.mark.parametrize("last_is_slow", [False, True])
def test_a_rank_that_is_disturbed_now_and_then(last_is_slow):
    random = np.random.default_rng(2)
    disturbed = set(10 * random.choice(np.arange(1, 200), 60, replace=False))
    disturbed |= {2000} if last_is_slow else set()

    def costs(rank, step):
        return (0.100 if rank == 2 and step in disturbed else 0.050), 0.001

    series = updates(costs)
    [one], sentence = described(series)
    assert (one.ranks, one.reason, one.pattern) == ((2,), "compute", "now and then")
    among_the_last = [step for step in sorted(disturbed) if step > 1500]
    assert one.slow_updates == len(among_the_last)
    assert one.since_step == among_the_last[0] - 9
    assert one.lost_s == pytest.approx(seconds_waited(series, 150), rel=0.02)
    assert one.own_s / one.median_s == pytest.approx(2.0, rel=0.02)
    assert sentence == (
        f"Rank 2 (host b) is slow now and then, in {one.slow_updates} of the last 50 "
        f"updates, since step {one.since_step:,}: its compute takes 2.0 x the median "
        f"then; on average the others wait {one.lost_s * 1e3:.0f} ms a step for it."
    )


@pytest.mark.parametrize("offset", range(0, 100, 10))
def test_a_rank_that_writes_something_now_and_then(offset):
    def costs(rank, step):
        writes = rank == 0 and step % 100 == offset
        return (0.350 if writes else 0.050), 0.001

    [one], sentence = described(updates(costs))
    assert (one.ranks, one.pattern, one.slow_updates) == ((0,), "now and then", 5)
    assert one.lost_s == pytest.approx(0.030, rel=0.02)
    assert one.since_step == 1500 + (offset or 100) - 9
    assert "in 5 of the last 50 updates" in sentence
    assert "the others wait 30 ms a step" in sentence


@pytest.mark.parametrize("quiet", [5, 30, 45])
def test_a_rank_that_was_slow(quiet):
    until = 2000 - 10 * quiet

    def costs(rank, step):
        slow = rank == 1 and 1000 <= step <= until
        return (0.070 if slow else 0.050), 0.001

    [one], sentence = described(updates(costs))
    assert (one.pattern, one.since_step, one.until_step) == ("past", 991, until)
    assert one.lost_s == pytest.approx(0.020, rel=0.03)
    assert one.lost_in == (991, until)
    assert sentence.startswith("No rank holds the others up now: the ranks compute 9")
    assert sentence.endswith(
        f" Rank 1 (host a) was slow from step 991 to {until:,}: its compute took 1.4 x "
        "the median; the others waited 20 ms a step for it."
    )


def test_what_is_long_over_is_not_told():
    def costs(rank, step):
        return (0.070 if rank == 1 and 1000 <= step < 1490 else 0.050), 0.001

    found, sentence = described(updates(costs))
    assert found == []
    assert sentence.startswith("No rank holds the others up: ")


def test_a_rank_that_is_slow_again():
    def costs(rank, step):
        slow = rank == 1 and (step <= 1000 or step > 1900)
        return (0.070 if slow else 0.050), 0.001

    [one], _ = described(updates(costs))
    assert (one.pattern, one.since_step) == ("steady", 1901)
    assert one.lost_s == pytest.approx(0.020, rel=0.03)


def test_who_is_slow_now_comes_before_who_was():
    def costs(rank, step):
        was = rank == 1 and step <= 1900
        is_now = rank == 2 and step > 1900
        return 0.050 + 0.050 * was + 0.020 * is_now, 0.001

    found, sentence = described(updates(costs))
    assert [(one.ranks, one.pattern) for one in found] == [
        ((2,), "steady"),
        ((1,), "past"),
    ]
    assert sentence.startswith("Rank 2 (host b) is slow: ")


@pytest.mark.parametrize(
    ("size", "slow", "who"),
    [
        (4, {1, 2, 3}, "Rank 0 (host a) is faster than the other ranks, whose compute"),
        (8, {3, 4, 5, 6, 7}, "Ranks 0, 1 and 2 (host a) are faster than the other r"),
        (4, {2, 3}, "Ranks 2 and 3 (host b) are slow: their compute takes 1.4 x the m"),
        (8, {0, 1, 5}, "Ranks 0, 1 and 5 are slow: their compute takes 1.4 x the m"),
        (64, set(range(40, 50)), "Ranks 40, 41, 42, 43 and 6 more (host b) are slow:"),
    ],
)
def test_several_that_are_slow_alike(size, slow, who):
    def costs(rank, step):
        return (0.070 if rank in slow and step >= 1200 else 0.050), 0.001

    series = updates(costs, size=size)
    [one], sentence = described(series)
    assert (set(one.ranks), one.reason) == (slow, "compute")
    waits = [row.waited_for_s for update in series[150:] for row in update.rows]
    costs_of = {rank: sum(w.get(rank, 0) for w in waits) for rank in slow}
    assert costs_of[one.ranks[0]] == max(costs_of.values())
    assert (one.pattern, one.since_step) == ("steady", 1191)
    assert one.lost_s == pytest.approx(0.020, rel=0.05)
    assert one.own_s / one.median_s == pytest.approx(1.4, rel=0.02)
    assert sentence.startswith(who)
    ending = r" takes 1\.4 x (the median|as long) since step 1,191; .* wait.* 2[01] ms "
    assert re.search(ending + r"a step for (them|those)\.$", sentence)


def test_one_of_many_that_is_faster_is_worth_no_word():
    def costs(rank, step):
        return (0.030 if rank == 7 else 0.050), 0.001

    found, _ = described(updates(costs, size=64, count=40))
    assert found == []


def test_a_session_that_goes_on_where_another_ended():
    series = updates(slow_compute)[150:]
    [one], sentence = described(series)
    # From its beginning, of which the first step is not measured.
    assert one.since_step == 1501
    assert "since step 1,501;" in sentence


def test_who_costs_little_beside_the_first_is_left_out():
    def costs(rank, step):
        return 0.050 + {1: 0.050, 2: 0.004}.get(rank, 0.0), 0.001

    series = updates(costs, count=20)
    # Rank 2 is the last one in a step of ten, and the others wait 4 ms for it.
    for update in series:
        update.rows[0].waited_for_s[2] = 0.012
        update.rows[3].waited_for_s[2] = 0.012
    [one], sentence = described(series)
    assert one.ranks == (1,)
    assert "its compute takes 2.0 x the median since the beginning; the" in sentence


def test_a_wait_that_nothing_explains():
    # It computes as long as the others, and yet they wait for it.
    rows = tuple(
        Row(
            rank, "a", 10, 1.0, 0.0, 0.7, 0.3, waited_for_s={2: 0.3} if rank < 2 else {}
        )
        for rank in range(3)
    )
    [one], sentence = described([Update(10 * n, float(n), rows) for n in range(1, 9)])
    assert (one.ranks, one.reason) == ((2,), "unknown")
    assert "does not say why" in sentence


def test_slow_link():
    def links(rank, step):
        slow = rank == 1 and step >= 1000
        # Beside it one for small messages, which are slow everywhere.
        small = Link(rank, (rank + 2) % 4, 4_000, 0.1)
        return small, Link(rank, (rank + 1) % 4, 40_000_000, 4.0 if slow else 0.1)

    [one], sentence = described(updates(even, exposed_s=0.080, links=links))
    assert (one.ranks, one.peer, one.reason) == ((1,), 2, "slow link")
    assert (one.since_step, one.pattern) == (991, "steady")
    assert sentence == (
        "The link from rank 1 (host a) to rank 2 (host b) is slow: 10 MB/s where other "
        "links have 400 MB/s since step 991; it costs every rank 78 ms a step."
    )


def test_what_costs_all_ranks_more_comes_first():
    def costs(rank, step):
        return (0.150 if rank in (0, 3) else 0.050), 0.001

    def links(rank, step):
        return (Link(rank, (rank + 1) % 4, 40_000_000, 4.0 if rank == 1 else 0.1),)

    found, _ = described(updates(costs, exposed_s=0.080, links=links))
    # 78 ms for each rank, and 100 ms for every second one.
    assert [(set(one.ranks), one.reason) for one in found] == [
        ({1}, "slow link"),
        ({0, 3}, "compute"),
    ]
    assert [one.lost_s for one in found] == pytest.approx([0.078, 0.100], rel=0.03)


def test_a_link_that_was_slow():
    def links(rank, step):
        slow = rank == 1 and 1000 <= step <= 1800
        return (Link(rank, (rank + 1) % 4, 40_000_000, 4.0 if slow else 0.1),)

    [one], sentence = described(updates(even, exposed_s=0.080, links=links))
    assert one.lost_s == pytest.approx(0.078, rel=0.01)
    assert sentence.endswith(
        "The link from rank 1 (host a) to rank 2 (host b) was slow from step 991 to "
        "1,800: 10 MB/s where other links had 400 MB/s; it cost every rank 78 ms a "
        "step."
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
    history = History.of(map(Table.of, series))
    assert history.ranks == (0, 1, 2, 3)
    assert np.isnan(history.compute[-1, 3])
    assert find_stragglers(history) == []
