"""What happens on a rank, in ringrun's log."""

from __future__ import annotations

import json
from pathlib import Path

from support.processes import wait_until
from support.ringrun import Ringrun

SCRIPT = """
import os, time
import ring_keras as ring
ring.init()
ring.monitoring.add_event("checkpoint", "saved by " + str(ring.rank()))
if ring.rank() == 1:
    wait_for("seen")
ring.barrier(name="the one")
"""


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
