"""A timeline of all ranks, recorded and written while they run."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from support import run_ranks
from support.rank_pool import RankPools
from support.ringrun import Ringrun

import ring_keras as ring
from ring_keras.monitoring.timeline.clocks import Offset
from ring_keras.monitoring.timeline.part_file import PartFile, find_parts, read_part


def records(directory: str, ending: str) -> None:
    path = Path(directory, f"timeline{ending}")
    ring.start_timeline(path)
    with pytest.raises(ring.RingKerasError, match="already"):
        ring.start_timeline(path)
    for turn in range(3):
        ring.allreduce(np.ones(100_000, np.float32), name=f"use{turn}")
    ring.stop_timeline()
    with pytest.raises(ring.RingKerasError, match="start_timeline"):
        ring.stop_timeline()


def test_all_ranks_are_in_one_file(rank_pool: RankPools, tmp_path: Path) -> None:
    rank_pool(2).run(records, args=(str(tmp_path), ".json"))

    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    for rank in (0, 1):
        names = [event["name"] for event in events if event["pid"] == rank]
        for turn in range(3):
            assert f"allreduce use{turn}" in names
        assert "transfer" in names
    # Rank 0's clock is right by definition; the other's error is said.
    titles = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert "clock ±" not in titles[0]
    assert "clock ±" in titles[1]


def cannot_write(path: str) -> str:
    ring.start_timeline(path)
    with pytest.raises(ring.RingKerasError) as info:
        ring.stop_timeline()
    return str(info.value)


@pytest.mark.parametrize("name", ["no such folder/timeline.json", "null\0.json"])
def test_a_file_that_cannot_be_written_is_an_error_on_all(
    rank_pool: RankPools, tmp_path: Path, name: str
) -> None:
    path = f"{tmp_path}/{name}"
    for message in rank_pool(2).run(cannot_write, args=(path,), timeout_s=60):
        assert message.startswith("[RK410] rank 0: cannot write the timeline")


def records_as_horovod(directory: str) -> None:
    import ring_keras.horovod.tensorflow as hvd

    path = Path(directory, "timeline.json")
    if ring.rank() == 0:
        hvd.start_timeline(str(path))
    hvd.allreduce(np.ones(3, np.float32), name="seen")
    if ring.rank() == 0:
        hvd.stop_timeline()
    with pytest.raises(NotImplementedError, match="mark_cycles"):
        hvd.start_timeline(str(path), mark_cycles=True)


def test_horovods_is_of_rank_0_alone(rank_pool: RankPools, tmp_path: Path) -> None:
    rank_pool(2).run(records_as_horovod, args=(str(tmp_path),))

    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0}
    assert any("seen" in event["name"] for event in events)


@pytest.mark.slow
def test_ringrun_writes_one_of_the_whole_job(tmp_path: Path) -> None:
    script = """
    import os, signal
    import numpy as np
    import ring_keras as ring
    ring.init()
    for name in "seen", "seen again":
        ring.allreduce(np.ones(3, np.float32), name=name)
        ring.shutdown()
        ring.init()
    ring.barrier()
    """
    ringrun = Ringrun(tmp_path)
    try:
        path = tmp_path / "timeline.json"
        # A larger job was killed there.
        PartFile(path, 5, "old", Offset(1.0, 0.0, 0.0)).close(0)
        ended = ringrun.run(script, "--timeline", str(path))
        assert ended.returncode == 0, ended
    finally:
        ringrun.close()

    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    for rank in (0, 1):
        names = [event["name"] for event in events if event["pid"] == rank]
        for name in ("seen", "seen again"):
            assert names.count(f"allreduce {name}") == 1
    assert not list(tmp_path.glob("timeline.json.rank*"))


@pytest.mark.slow
def test_a_full_disk_ends_the_timeline_and_not_the_job(tmp_path: Path) -> None:
    # A file that can grow no further is as a disk that is full.
    script = """
    import resource
    import numpy as np
    import ring_keras as ring
    ring.init()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    for turn in range(20):
        ring.allreduce(np.ones(3, np.float32), name=f"use{turn}")
    ring.shutdown()
    """
    ringrun = Ringrun(tmp_path)
    try:
        path = tmp_path / "timeline.json"
        ended = ringrun.run(script, "--timeline", str(path))
        assert ended.returncode == 0, ended
    finally:
        ringrun.close()
    assert b"the timeline ends here" in ended.stderr


def leaves_while_it_records(directory: str) -> list[str]:
    import ring_keras.horovod.tensorflow as hvd

    ring.init()
    hvd.start_timeline(str(Path(directory, "timeline.json")))
    hvd.allreduce(np.ones(3, np.float32), name="seen")
    ring.shutdown()
    return [thread.name for thread in threading.enumerate()]


def test_leaving_the_job_ends_the_recording(tmp_path: Path) -> None:
    [threads] = run_ranks(leaves_while_it_records, 1, args=(str(tmp_path),))
    assert "ring_keras timeline" not in threads
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert any("seen" in event["name"] for event in events)


def joins_if_all_record() -> str:
    with pytest.raises(ring.RankMismatchError) as info:
        ring.init()
    return str(info.value)


def test_all_ranks_record_or_none(tmp_path: Path) -> None:
    env = [{}, {"RING_KERAS_TIMELINE": str(tmp_path / "timeline.json")}]
    for message in run_ranks(joins_if_all_record, 2, env=env):
        assert (
            "RING_KERAS_TIMELINE is set on some ranks, and not on ranks [0]" in message
        )


def test_what_a_killed_rank_has_written_is_read(tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.json"
    part = PartFile(timeline, 3, "a", Offset(1.0, 0.5, 0.001))
    part.add([{"name": "x"}])
    whole = PartFile(timeline, 12, "b", Offset(1.0, 0.0, 0.0))
    whole.close(7)
    with (tmp_path / "timeline.json.rank3").open("a") as file:
        file.write('{"name": "hal')

    again = PartFile(timeline, 3, "b", Offset(2.0, 0.5, 0.001), follows=True)
    again.add([{"name": "y"}])

    first, second = find_parts(timeline)
    read, read_again = read_part(first)
    assert (read.rank, read.records, read.lost) == (3, [{"name": "x"}], 0)
    assert (read_again.host, read_again.records) == ("b", [{"name": "y"}])
    [other] = read_part(second)
    assert (other.rank, other.records, other.lost) == (12, [], 7)
