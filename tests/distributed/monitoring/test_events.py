"""What happens on a rank, in ringrun's log."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from support.processes import wait_until
from support.rank_pool import RankPools
from support.ringrun import Ringrun

import ring_keras as ring
from ring_keras import _native
from ring_keras.lifecycle.reporter import _Stalls, report_line

SCRIPT = """
import os, time
import ring_keras as ring
ring.init()
ring.monitoring.add_event("checkpoint", "saved by " + str(ring.rank()))
ring.monitoring.add_event("long" * 5000, chr(0x1F600) * 500)
if ring.rank() == 1:
    wait_for("seen")
ring.barrier(name="the one")
"""


@pytest.mark.slow
def test_stalls_and_checkpoints_are_in_the_event_log(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.touch()
    ringrun = Ringrun(tmp_path)
    options = ["--event-log", str(log), "--stall-check-warning-time-seconds", "1"]

    def events(kind: str) -> list[tuple[int, str]]:
        found = map(json.loads, log.read_text().splitlines())
        return [(one["rank"], one["text"]) for one in found if one["kind"] == kind]

    try:
        process = ringrun.start(SCRIPT, *options)
        wait_until(lambda: events("stall") != [], "the stall is in the log", 120)
        (ringrun.directory / "seen").touch()
        assert ringrun.finish(process).returncode == 0
    finally:
        ringrun.close()
    [(rank, text)] = events("stall")
    assert rank == 0
    assert text.startswith("barrier 'the one' has waited for other ranks for ")
    assert sorted(events("checkpoint")) == [(0, "saved by 0"), (1, "saved by 1")]
    # A character takes 12 bytes, and a line no more than a pipe takes at once.
    assert [text for _, text in events(("long" * 13)[:50])] == ["\U0001f600" * 250] * 2


def begin_anew() -> None:
    """Leaves behind what earlier tests' ranks may still wait for."""
    ring.shutdown()
    ring.init()


def tells_of_a_stall() -> list[str]:
    begin_anew()
    if ring.rank() == 1:
        ring.broadcast_object(None, name="told")
        ring.barrier(name="late")
        return []
    late = threading.Thread(target=ring.barrier, kwargs={"name": "late"})
    late.start()
    stalls = _Stalls(0, longer_than_s=0.0)
    told: list[dict[str, Any]] = []

    def is_told() -> bool:
        told.extend(stalls.new())
        return bool(told)

    wait_until(is_told, "the barrier is seen")
    for _ in range(20):
        told += stalls.new()
    ring.broadcast_object(None, name="told")
    late.join()
    return [one["text"].split(" has ")[0] for one in told]


def test_a_stall_is_told_once(rank_pool: RankPools) -> None:
    assert rank_pool(2).run(tells_of_a_stall)[0] == ["barrier 'late'"]


def waits_worker() -> dict[str, float]:
    """What rank 0 reports while it waits."""
    begin_anew()
    if ring.rank() == 1:
        ring.broadcast_object(None, name="told")
        ring.barrier(name="late")
        return {}
    late = threading.Thread(target=ring.barrier, kwargs={"name": "late"})
    late.start()
    wait_until(lambda: _native.waits().get(1, 0) > 0, "the wait is seen")
    line = report_line(0, _native.stats(most_steps=0)["totals"], _native.waits())
    ring.broadcast_object(None, name="told")
    late.join()
    assert _native.waits() == {}
    waits: dict[str, float] = json.loads(line)["waits_for_s"]
    return waits


def test_a_report_names_who_is_waited_for(rank_pool: RankPools) -> None:
    assert rank_pool(2).run(waits_worker)[0].keys() == {"1"}
