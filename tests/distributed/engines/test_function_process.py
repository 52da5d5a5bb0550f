"""Ranks in processes below an engine's workers: here, threads of the test's."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import pytest
from support import functions_of_ranks
from support.processes import is_alive, wait_until

from ring_keras.engines.function_process import FunctionProcess
from ring_keras.engines.outcomes import Outcome, RankFailedError, results_of
from ring_keras.engines.rank_start import RankStart, places_by_host, rank_variables
from ring_keras.schedulers.store_card import StoreCard

NO_PARTS = pickle.dumps(())


def look() -> None:
    """Nobody gives it up."""


def run_ranks(
    function: Callable[[], object], size: int = 2, env: Mapping[str, str] | None = None
) -> list[Outcome]:
    """As an engine would: one worker a rank, and rank 0 tells the others."""
    places = places_by_host(["host"] * size)
    told: Queue[StoreCard] = Queue()

    def run(rank: int) -> Outcome:
        with FunctionProcess(env or {}) as process:
            if rank == 0:
                card = process.start_store(places[0], "a test", "127.0.0.1", look)
                assert isinstance(card, StoreCard)
                for _ in range(size - 1):
                    told.put(card)
            else:
                card = told.get(timeout=60)
            process.load(pickle.dumps(function), NO_PARTS, "pickle")
            return process.run(RankStart(places[rank], card), look)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def test_ranks_find_each_other_and_return_their_results() -> None:
    before = dict(os.environ)

    results = results_of(run_ranks(functools.partial(functions_of_ranks.told_sum, 10)))

    assert results == [(0, 2, 30.0, []), (1, 2, 30.0, [])]
    assert dict(os.environ) == before


def test_sets_have_one_order_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    orders = functions_of_ranks.order_of_a_set

    first, second = (
        results_of(run_ranks(orders, env=rank_variables(60, None))) for _ in range(2)
    )

    assert first[0] == first[1]
    assert second[0] == second[1]
    assert first[0] != second[0]  # Another in each job.


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raises", "raised ValueError: no such thing"),
        ("exits", "exited with code 3"),
        ("dies", "was killed by SIGKILL"),
    ],
)
def test_the_rank_that_failed_first_is_named(how: str, text: str) -> None:
    outcomes = run_ranks(functools.partial(functions_of_ranks.fails_on_rank_1, how))

    assert outcomes[0].failure is not None
    assert "PeerLostError" in outcomes[0].failure
    with pytest.raises(RankFailedError) as caught:
        results_of(outcomes)
    assert caught.value.rank == 1
    assert text in str(caught.value)
    assert ("no such thing\nat all" in caught.value.details) == (how == "raises")


def test_what_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    place = places_by_host(["host"])[0]
    with FunctionProcess({}) as process:
        card = process.start_store(place, "a test", "127.0.0.1", look)
        process.load(b"nonsense", NO_PARTS, "pickle")
        outcome = process.run(RankStart(place, card), look)

    assert "UnpicklingError" in (outcome.failure or "")


def test_nothing_is_left_of_one_that_is_given_up(tmp_path: Path) -> None:
    place = places_by_host(["host"])[0]
    call = functools.partial(functions_of_ranks.writes_its_pid_and_waits, str(tmp_path))

    def is_given_up() -> None:
        if len(list(tmp_path.iterdir())) == 2:
            raise KeyboardInterrupt

    def run() -> None:
        with FunctionProcess({}) as process:
            card = process.start_store(place, "a test", "127.0.0.1", look)
            process.load(pickle.dumps(call), NO_PARTS, "pickle")
            with pytest.raises(KeyboardInterrupt):
                process.run(RankStart(place, card), is_given_up)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)

    assert not thread.is_alive()
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_alive, pids)), "all have ended")


# What it leaves behind holds its line to the worker; whoever started the worker may
# have ignored that children end.
def test_the_end_of_a_rank_is_seen_whatever_it_leaves(tmp_path: Path) -> None:
    place = places_by_host(["host"])[0]
    call = functools.partial(functions_of_ranks.forks_and_dies, str(tmp_path))
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = FunctionProcess({})
    finally:
        signal.signal(signal.SIGCHLD, before)
    with process:
        card = process.start_store(place, "a test", "127.0.0.1", look)
        process.load(pickle.dumps(call), NO_PARTS, "pickle")
        began = time.monotonic()
        outcome = process.run(RankStart(place, card), look)

    (pid,) = (int(path.name) for path in tmp_path.iterdir())
    os.kill(pid, signal.SIGKILL)
    assert outcome.failure == "was killed by SIGKILL"
    assert time.monotonic() - began < 25, "it was waited for in vain"
