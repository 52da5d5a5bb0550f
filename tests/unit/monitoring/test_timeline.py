"""What becomes of the ranks' records in a timeline."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ring_keras.monitoring.timeline.__main__ import main
from ring_keras.monitoring.timeline.chrome_file import write_chrome
from ring_keras.monitoring.timeline.clocks import Clock, Offset, bounds_of
from ring_keras.monitoring.timeline.drift import with_drift
from ring_keras.monitoring.timeline.merged import RankTimeline, slices, tracks
from ring_keras.monitoring.timeline.perfetto_file import write_perfetto


def record(name: str, begin: float, end: float, **more: Any) -> dict[str, Any]:
    return {
        **{"kind": "allreduce", "name": name, "algorithm": "ring", "step": 1},
        **{"bytes": 8, "ranks": 2, "last_rank": 1, "outcome": "ok"},
        **{"submitted_at": begin, "arrived_at": begin, "matched_at": begin + 0.25},
        **{"first_byte_at": begin + 0.25, "last_byte_at": end, "done_at": end},
        **more,
    }


def rank(number: int, records: list[dict[str, Any]], ahead_s: float) -> RankTimeline:
    offset = Offset(at=0.0, ahead_s=ahead_s, error_s=5e-6)
    return RankTimeline(number, "a", Clock(offset, offset), records, lost=0)


RANKS = [
    rank(0, [record("x", 10.0, 11.0), record("x", 12.0, 13.0)], 0.0),
    rank(1, [record("x", 13.25, 14.0), record("x", 15.0, 16.0)], 3.0),
]


def test_a_clock_that_drifts_is_corrected() -> None:
    clock = Clock(Offset(100.0, 2.0, 0.1), Offset(200.0, 4.0, 0.3))
    assert clock.corrected(100.0) == pytest.approx(98.0)
    assert clock.corrected(150.0) == pytest.approx(147.0)
    assert clock.error_s == 0.3


def test_barriers_bound_how_far_clocks_are_apart() -> None:
    # This one is 5 ahead; each barrier has been entered by both when both leave.
    other = [(0.0, 2.0), (10.0, 11.0)]
    own = [(6.0, 7.5), (15.5, 16.5)]
    low, high = bounds_of(own, other)
    assert low <= 5.0 <= high
    assert (low, high) == (4.5, 6.5)


def drifting(ahead_s: float, last: int) -> tuple[RankTimeline, RankTimeline]:
    """Rank 1's clock is 3 s ahead at 0, and `ahead_s` more at 100; who is `last`."""
    begins = [0.0, 1.0, 99.0, 100.0]
    late = [0.25 * (turn % 2 if last < 0 else last == 1) for turn in range(4)]
    mine, theirs = [], []
    for begin, by in zip(begins, late, strict=True):
        matched = begin + 0.25
        theirs.append(record("x", begin + 0.25 - by, begin + 1, matched_at=matched))
        clock = 3.0 + ahead_s * begin / 100
        one = record("x", begin + by + clock, begin + 1 + clock)
        mine.append(one | {"matched_at": matched + clock})
    return rank(0, theirs, 0.0), rank(1, mine, 3.0)


def test_collectives_tell_how_a_clock_has_drifted() -> None:
    both = drifting(0.01, last=-1)

    first, second = with_drift(both)

    assert first is both[0]
    # Each was the last once at the end: that bounds it from both sides.
    assert second.clock.last.ahead_s == pytest.approx(3.01, abs=2e-4)
    assert second.clock.error_s < 2e-4
    assert second.clock.corrected(53.005) == pytest.approx(50.0, abs=2e-4)


def test_a_clock_is_moved_only_as_far_as_is_proven() -> None:
    _, second = with_drift(drifting(0.01, last=0))
    # Rank 1 always waits: it cannot be behind by less than this, and no more is known.
    assert 3.0 <= second.clock.last.ahead_s <= 3.0101
    assert second.clock.error_s == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("change", ["jumps", "lost", "set"])
def test_what_does_not_match_moves_no_clock(change: str) -> None:
    first, second = drifting(10.0 if change == "jumps" else 0.01, last=-1)
    if change == "lost":
        second = dataclasses.replace(second, lost=1)
    if change == "set":
        for one in [*first.records, *second.records]:
            one["ranks"] = 3
    assert with_drift([first, second])[1] is second


def test_what_overlaps_gets_a_lane_of_its_own() -> None:
    records = [record("a", 1, 5), record("b", 2, 3), record("c", 3, 4)]
    found = tracks(slices(rank(0, records, 0.0), {}))
    assert [[one.name for one in lane] for lane in found] == [
        ["allreduce a"],
        ["allreduce b", "allreduce c"],
    ]


def test_chromes_format(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    write_chrome(path, RANKS)
    events = json.loads(path.read_text())["traceEvents"]

    titles = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert titles == ["rank 0 (a)", "rank 1 (a), clock ± 5 us"]
    begun = [event["ts"] for event in events if event["name"] == "allreduce x"]
    assert begun == [10e6, 12e6, 10.25e6, 12e6]
    waits = [event for event in events if event["name"] == "wait for rank 1"]
    assert [event["dur"] for event in waits] == [0.25e6] * 4
    # From who came first to who came last.
    flows = [(e["id"], e["pid"], e["ph"]) for e in events if e.get("cat") == "flow"]
    assert flows == [(1, 0, "s"), (1, 1, "f"), (2, 0, "s"), (2, 1, "f")]
    times = [event["ts"] for event in events if event.get("cat") == "flow"]
    assert times == [10e6, 10.25e6, 12e6, 12e6]


def test_an_arrow_goes_from_the_first_rank_to_the_last(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    begins = (12.0, 11.0, 10.0)
    ranks = [rank(i, [record("x", at, 13.0)], 0.0) for i, at in enumerate(begins)]
    write_chrome(path, ranks)
    events = json.loads(path.read_text())["traceEvents"]

    flows = [(e["pid"], e["ph"]) for e in events if e.get("cat") == "flow"]
    assert flows == [(2, "s"), (1, "t"), (0, "f")]


def test_perfettos_format(tmp_path: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    path = tmp_path / "timeline.pftrace"
    write_perfetto(path, RANKS)
    trace = protos.Trace.FromString(path.read_bytes())

    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    processes = [
        track.process.process_name
        for track in tracks.values()
        if track.HasField("process")
    ]
    assert processes == ["rank 0 (a)", "rank 1 (a), clock ± 5 us"]
    depth = 0
    began = []
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in tracks
        if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
            depth += 1
            if event.name == "allreduce x":
                began.append((packet.timestamp, list(event.flow_ids)))
        else:
            depth -= 1
        assert depth >= 0
    assert depth == 0
    assert began == [
        (10_000_000_000, [1]),
        (12_000_000_000, [2]),
        (10_250_000_000, [1]),
        (12_000_000_000, [2]),
    ]


def test_a_timeline_that_is_joined_already(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "t.json"
    path.write_text("{}")

    assert main([str(path)]) == 0

    assert f"no parts {path}.rank* are left to join" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("t.json.rank1", "the whole timeline's name: ring timeline {}/t.json\n"),
        ("other.json", "expected {}/other.json.rank0, "),
    ],
)
def test_another_name_than_the_timelines(
    tmp_path: Path, capsys: Any, name: str, told: str
) -> None:
    (tmp_path / "t.json.rank0").touch()

    assert main([str(tmp_path / name)]) == 1

    assert told.format(tmp_path) in capsys.readouterr().err
