"""Faults of all kinds, at all places, drawn at random: `make test-faults`.

Every rank that is left gets the same named error, soon, and keeps nothing of the job;
or goes on, where the fault is none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from support import RankOutcome, run_ranks
from support.faults.cases import (
    BAD_LINKS,
    ELASTIC,
    FITS,
    HARMLESS,
    HOSTS,
    LINK_FAULTS,
    ON_HOSTS,
    OUT_OF_MEMORY,
    STORE_KILLED,
    Case,
    draw,
)
from support.faults.commit import MEMORY_GROUP, STORE_PID
from support.faults.elastic_job import require_going_on, require_going_on_elsewhere
from support.faults.faulty_link import FaultyLink
from support.faults.lone_store import lone_store
from support.faults.work import work
from support.hosts import run_on
from support.memory_limit import memory_group
from support.ssh_hosts import SshHosts

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("FAULTS", "12"))
SEED = int(os.environ.get("FAULT_SEED", "0"))

# When what takes a wait to be noticed is.
COLLECTIVE_TIMEOUT_S = 5.0
HEARTBEATS_S = 6.0
# Longer than the store may take to miss a heartbeat. Ranks that wait for one that stops
# may have begun to wait before it did, and with a limit no longer than the heartbeats'
# (5 s) they rightly give up first, now and then.
TIMEOUT_BEYOND_HEARTBEATS_S = 60.0
NOTICE_S = 5.0
# Without a word from who is lost.
GOOD_BYE_S = 6.0
# Packets that are lost again and again take that long to come.
LINK_TIMEOUT_S = 60.0
INIT_TIMEOUT_S = 20.0
# What is left to who meets the OOM killer.
MEMORY_NBYTES = 64 << 20
# What the store says of one that it gives up.
GIVEN_UP = "has been silent for 5 s"
# What a rank says of a connection to another host that is gone.
NO_ANSWER = "the other host has not answered for 7 s"
# Who has come says who has not, or who is lost: a rank, or the store, if it came
# as far as the job's first collectives; who has not come, where it cannot go.
JOINING = (
    r"(PeerLost|CollectiveTimeout)Error: .*(\branks? \d|\bthe store at)"
    r"|reach the store at"
)


@pytest.mark.timeout(360)
@pytest.mark.parametrize("case", draw(COUNT, SEED), ids=str)
def test_a_fault(tmp_path: Path, make_hosts: Any, case: Case) -> None:
    if case.work == ELASTIC:
        require_going_on(case, tmp_path)
    elif case.work == ON_HOSTS:
        (tmp_path / "hosts").mkdir()
        hosts = make_hosts(SshHosts(HOSTS, tmp_path / "hosts"))
        require_going_on_elsewhere(case, hosts, tmp_path)
    elif case.fault in LINK_FAULTS:
        on_a_link(make_hosts(FaultyLink(case)), case, tmp_path)
    elif case.fault == OUT_OF_MEMORY:
        with memory_group(f"ring_keras_faults_{os.getpid()}", MEMORY_NBYTES) as group:
            (tmp_path / MEMORY_GROUP).write_text(str(group))
            of_a_process(case, tmp_path)
    elif case.fault == STORE_KILLED:
        with lone_store(case.size, tmp_path) as (pid, env):
            (tmp_path / STORE_PID).write_text(str(pid))
            of_the_store(case, tmp_path, env)
    else:
        of_a_process(case, tmp_path)


def run(
    case: Case, directory: Path, more_env: Mapping[str, str] = MappingProxyType({})
) -> list[RankOutcome]:
    stops = case.fault == "SIGSTOP"
    timeout_s = TIMEOUT_BEYOND_HEARTBEATS_S if stops else COLLECTIVE_TIMEOUT_S
    env = {
        "RING_KERAS_TRANSPORT": case.transport,
        "RING_KERAS_COLLECTIVE_TIMEOUT_S": str(timeout_s),
        **more_env,
    }
    arguments = (case, str(directory))
    return run_ranks(work, case.size, env=env, args=arguments, check=False)


def of_the_store(case: Case, directory: Path, env: Mapping[str, str]) -> None:
    own = {"RING_KERAS_INIT_TIMEOUT_S": str(INIT_TIMEOUT_S)}
    outcomes = run(case, directory, {**env, **own})

    if case.place == "in init":
        require_joined_or_told(case, outcomes)
        return
    committed_at = float((directory / "fault").read_text())
    sentence = require_one_sentence(outcomes, "PeerLostError")
    assert f"the store at {env['RING_KERAS_STORE_ADDRESS']} is gone" in sentence
    require_soon(outcomes, committed_at, NOTICE_S, directory)


def of_a_process(case: Case, directory: Path) -> None:
    outcomes = run(case, directory)

    committed_at = float((directory / "fault").read_text())
    victim = outcomes[case.victim]
    if case.fault in HARMLESS:
        assert all(outcome.ok for outcome in outcomes), described(outcomes)
        return
    others = [outcome for outcome in outcomes if outcome is not victim]
    assert not victim.ok
    expected, within_s = "PeerLostError", NOTICE_S
    if case.fault == "keeps Python's lock":
        expected = "CollectiveTimeoutError"
        within_s += COLLECTIVE_TIMEOUT_S
    elif case.fault == "SIGSTOP":
        within_s += HEARTBEATS_S
    elif case.fault == "raises" and case.work in FITS:
        expected = "RankMismatchError"  # It tells them before it ends.
    sentence = require_one_sentence(others, expected)
    assert re.search(rf"\branks? {{?{case.victim}\b", sentence), described(others)
    require_soon(others, committed_at, within_s, directory)


def on_a_link(link: FaultyLink, case: Case, directory: Path) -> None:
    outcomes = run_on(
        link,
        work,
        case.host_of,
        more_env={
            "RING_KERAS_COLLECTIVE_TIMEOUT_S": str(LINK_TIMEOUT_S),
            "RING_KERAS_INIT_TIMEOUT_S": str(INIT_TIMEOUT_S),
        },
        forks=True,
        timeout_s=150,
        args=(case, str(directory)),
        check=False,
    )

    assert link.begun_at is not None
    if case.fault in BAD_LINKS:
        assert all(outcome.ok for outcome in outcomes), described(outcomes)
        return
    if case.place == "in init":
        require_joined_or_told(case, outcomes)
        return
    for host in range(2):
        here = [outcome for outcome in outcomes if case.host_of[outcome.rank] == host]
        if all(GIVEN_UP in outcome.message for outcome in here):
            continue  # Each has heard of another one of those that the store lost.
        if all(NO_ANSWER in outcome.message for outcome in here):
            # At one moment each has found its own connection to be broken.
            sentences = [sentence_of(outcome, "PeerLostError") for outcome in here]
        else:
            sentences = [require_one_sentence(here, "PeerLostError")]
        beyond = [rank for rank, place in enumerate(case.host_of) if place != host]
        named = "|".join(map(str, beyond))
        for sentence in sentences:
            assert re.search(rf"\branks? ({named})\b|the store at", sentence), sentence
    require_soon(outcomes, link.begun_at, NOTICE_S + HEARTBEATS_S, directory)


def require_joined_or_told(case: Case, outcomes: list[RankOutcome]) -> None:
    """Who has not come is waited for, and what is not there yet cannot be lost."""
    if case.fault == "connections forgotten" and all(one.ok for one in outcomes):
        return
    for outcome in outcomes:
        assert re.search(JOINING, outcome.traceback), described(outcomes)
        assert outcome.seconds < INIT_TIMEOUT_S + NOTICE_S + 2 * HEARTBEATS_S


def require_one_sentence(outcomes: list[RankOutcome], expected: str) -> str:
    """That of the same error on all of these."""
    sentences = {sentence_of(outcome, expected) for outcome in outcomes}
    assert len(sentences) == 1, described(outcomes)
    return sentences.pop()


def require_soon(
    outcomes: list[RankOutcome], since: float, within_s: float, notes: Path
) -> None:
    """The error came in time, and shutdown() did not wait long for who is lost."""
    for outcome in outcomes:
        raised_at = float((notes / f"raised.{outcome.rank}").read_text())
        assert raised_at - since < within_s, described(outcomes)
        assert outcome.ended_at - raised_at < GOOD_BYE_S, described(outcomes)


def sentence_of(outcome: RankOutcome, expected: str) -> str:
    """What the error says; in a function of TensorFlow's its class is TensorFlow's."""
    if outcome.exception_type == expected:
        return outcome.message
    found = re.search(f"{expected}: (.*)", outcome.message)
    assert found, outcome.describe()
    return found[1]


def described(outcomes: list[RankOutcome]) -> str:
    return "\n".join(outcome.describe() for outcome in outcomes)
