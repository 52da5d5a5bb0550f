"""Real runs of four ranks: the page and `ring.stats()` name who is slow, and why."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support.hosts import run_on
from support.network import Network, run
from support.slowed_training import init_and_train, train

pytestmark = [pytest.mark.board, pytest.mark.timeout(900)]


# Of the run, and none of what these ranks did before.
LAST_STEPS = slice(-100, None)


def most_waited_for(all_stats: list[Any]) -> int:
    """The rank for which all together have waited longest."""
    waits = [
        step.waited_for_s for stats in all_stats for step in stats.steps[LAST_STEPS]
    ]
    return int(np.argmax(np.sum(waits, axis=0)))


def longest(all_stats: list[Any], name: str) -> int:
    """The rank with most of that."""
    sums = [
        sum(getattr(step, name) for step in stats.steps[LAST_STEPS])
        for stats in all_stats
    ]
    return int(np.argmax(sums))


def test_a_rank_whose_compute_is_slow(tmp_path, rank_pool, open_board):
    worker = functools.partial(train, tmp_path, slow_compute=2)
    all_stats = rank_pool(4).run(worker)
    assert most_waited_for(all_stats) == 2
    assert longest(all_stats, "compute_s") == 2

    board = open_board(tmp_path)
    sentence = board.headline()
    assert sentence.startswith("Rank 2 ")
    assert "is slow: its compute takes " in sentence
    board.open_tab("Stragglers")
    first = board.table("Who holds the others up")[0]
    assert first[0].startswith("Rank 2 ")
    assert first[1] == "compute"
    # What a real run has written is in every other view too.
    board.open_tab("Collectives")
    assert len(board.charts()) == 2
    board.open_tab("Step")
    assert len(board.table("Step ")) == 4
    board.open_tab("Events")
    assert "4 ranks begin to train." in board.table("Events")[-1]
    assert board.errors == []


def test_a_rank_whose_input_is_slow(tmp_path, rank_pool, open_board):
    worker = functools.partial(train, tmp_path, slow_input=1)
    all_stats = rank_pool(4).run(worker)
    assert most_waited_for(all_stats) == 1
    assert longest(all_stats, "input_s") == 1

    board = open_board(tmp_path)
    sentence = board.headline()
    assert sentence.startswith("Rank 1 ")
    assert " a step for its input, where others wait " in sentence


def slow_down(network: Network, host: int) -> None:
    """What a host sends goes at 100 Mbit/s."""
    shape = ["tbf", "rate", "100mbit", "burst", "64kb", "latency", "50ms"]
    run("tc", "-n", network.names[host], "qdisc", "add", "dev", "eth0", "root", *shape)


def test_a_slow_link(tmp_path, make_hosts, open_board):
    network = make_hosts(Network(4))
    slow_down(network, 1)
    worker = functools.partial(init_and_train, tmp_path, steps=20, units=700)
    all_stats = run_on(network, worker, [0, 1, 2, 3], timeout_s=400)
    # Nobody computes longer than others; they stand still while bytes move. Of all
    # together, since one may get less of a processor than another.
    totals = [stats.totals for stats in all_stats]
    exposed_s = sum(one.exposed_s for one in totals)
    assert exposed_s > sum(one.wait_s for one in totals)
    assert exposed_s > sum(one.input_s for one in totals)
    # What carries little is as slow as a message is late.
    busiest = [max(stats.links, key=lambda link: link.bytes) for stats in all_stats]
    assert min(busiest, key=lambda link: link.bandwidth).sender == 1

    board = open_board(tmp_path)
    sentence = board.headline()
    # All that it sends is slow, to whomever.
    assert sentence.startswith("The link from rank 1 (host host1) to rank ")
    board.open_tab("Stragglers")
    first = board.table("Who holds the others up")[0]
    assert first[0].startswith("The link from rank 1 (host host1) to rank ")
    assert first[1] == "slow link"
