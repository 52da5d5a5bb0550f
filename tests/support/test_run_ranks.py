"""What the other tests rely on: failures of ranks are seen, and told well."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from support import run_ranks
from support.processes import wait_until_dead


@dataclass
class Answer:
    """Travels both ways: its class must be the same in parent and child."""

    rank: int
    value: int


def rank() -> int:
    return int(os.environ["RING_KERAS_RANK"])


def answer(value: Answer, *, plus: int = 0) -> Answer:
    return Answer(rank(), value.value + plus)


def misbehave(kinds: list[str]) -> str:
    kind = kinds[rank()]
    print("printed by", rank())
    if kind == "raise":
        raise LookupError("lost my way")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exit":
        sys.exit(3)
    if kind == "unpicklable":
        return lambda: None
    if kind == "hang":
        hang_here()
    return kind


def hang_here() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print("child", child.pid, flush=True)
    time.sleep(60)


def environment(names: list[str]) -> list[str | None]:
    return [os.environ.get(name) for name in names]


@pytest.mark.parametrize("size", [1, 3])
def test_results_come_by_rank(size):
    worker = functools.partial(answer, plus=1)

    results = run_ranks(worker, size, args=[Answer(-1, 41)])

    assert results == [Answer(index, 42) for index in range(size)]


def test_each_rank_gets_the_jobs_environment_and_the_tests(monkeypatch):
    monkeypatch.setenv("RING_KERAS_TRANSPORT", "leaked from the shell")
    names = ["RING_KERAS_TRANSPORT", "RING_KERAS_SIZE", "X", "CUDA_VISIBLE_DEVICES"]

    results = run_ranks(environment, 2, args=[names], env=[{"X": "a"}, {"X": "b"}])

    assert results == [[None, "2", "a", ""], [None, "2", "b", ""]]


def test_outcomes_tell_how_each_rank_ended():
    kinds = ["return", "raise", "kill", "exit"]

    outcomes = run_ranks(misbehave, 4, args=[kinds], check=False)

    assert [outcome.ok for outcome in outcomes] == [True, False, False, False]
    returned, raised, killed, exited = outcomes
    assert (returned.result, returned.returncode) == ("return", 0)
    assert returned.stdout == "printed by 0\n"
    assert raised.exception_type == "LookupError"
    assert "Exception" in raised.exception_bases
    assert raised.message == "lost my way"
    assert "in misbehave" in raised.traceback
    assert raised.returncode == 1
    assert killed.signal == signal.SIGKILL
    assert killed.exception_type is None
    assert exited.exception_type == "SystemExit"
    assert all(0 < outcome.seconds < 90 for outcome in outcomes)


def test_every_failing_rank_is_reported():
    with pytest.raises(AssertionError) as caught:
        run_ranks(misbehave, 3, args=[["raise", "return", "kill"]])

    text = str(caught.value)
    assert "misbehave on 3 ranks" in text
    assert "LookupError: lost my way" in text
    assert "rank 2 (pid" in text
    assert "was killed by SIGKILL" in text
    assert "rank 1" not in text


def test_a_result_that_cannot_travel_is_a_failure():
    with pytest.raises(AssertionError, match="pickle"):
        run_ranks(misbehave, 1, args=[["unpicklable"]])


def test_a_hanging_rank_shows_where_and_leaves_no_child():
    (outcome,) = run_ranks(misbehave, 1, args=[["hang"]], check=False, timeout_s=3)

    assert outcome.timed_out
    assert not outcome.ok
    assert "in hang_here" in outcome.stderr
    wait_until_dead([outcome.pid, int(outcome.stdout.split()[-1])])
