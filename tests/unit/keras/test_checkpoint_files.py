"""Which files of checkpoints count, and which are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ring_keras.callbacks.backup_directory import LocalDirectory
from ring_keras.callbacks.checkpoint_files import CheckpointFiles, CheckpointName
from ring_keras.callbacks.checkpoint_reading import newest_whole
from ring_keras.errors import RingKerasError

TOKEN = "01234567"


def name(steps, *, run=2, token=TOKEN, generation=0, size=2):
    return CheckpointName(run, steps, token, generation, size)


@pytest.fixture
def files(tmp_path):
    return CheckpointFiles(tmp_path)


def write(files, one, *places):
    for place in places:
        files.write(one, place, memoryview(b"its part"), {})


def test_it_is_complete_when_the_last_record_is_there(files, tmp_path):
    write(files, name(3), 0, 1)
    write(files, name(6), 1)
    (tmp_path / name(6).part(0)).write_bytes(b"without a record")
    # Of as many ranks, but not of the same ones, or not of the same life.
    write(files, name(9), 0)
    write(files, name(9, generation=1), 1)
    write(files, name(9, token="76543210"), 1)
    (tmp_path / "notes.txt").touch()

    assert files.complete() == [name(3)]
    assert files.found()[name(6)] == {1}


def test_the_newest_run_comes_first_and_then_the_most_steps(files):
    for one in (name(500, run=1), name(3), name(12), name(6)):
        write(files, one, 0, 1)

    assert files.complete() == [name(12), name(6), name(3), name(500, run=1)]


def test_what_may_yet_be_complete_stays(files, tmp_path):
    """The first rank has written step 12's part late: rank 1 has begun step 15's."""
    write(files, name(3), 0, 1)
    write(files, name(6), 0)
    write(files, name(9), 0)
    write(files, name(12), 0)
    write(files, name(15), 1)
    write(files, name(40, run=1), 1)
    (tmp_path / "unfinished.76543210-g0.1-of-2.part").touch()
    (tmp_path / f"unfinished.{TOKEN}-g0.1-of-2.part").touch()
    (tmp_path / "notes.txt").touch()
    files.remove_old(TOKEN, name(9), keep=2)

    assert set(files.found()) == {name(3), name(9), name(12), name(15)}
    assert sorted(path.name for path in tmp_path.glob("[nu]*")) == [
        "notes.txt",
        f"unfinished.{TOKEN}-g0.1-of-2.part",
    ]


def test_as_many_complete_ones_stay_as_are_wanted(files):
    for steps in (3, 6, 9, 12):
        write(files, name(steps), 0, 1)
    write(files, name(15), 1)
    files.remove_old(TOKEN, name(12), keep=2)
    assert set(files.found()) == {name(9), name(12), name(15)}

    files.remove_old(TOKEN, name(99), keep=1)
    assert set(files.found()) == {name(12)}


def test_records_are_removed_before_parts(files, monkeypatch):
    """Whatever ends the removal, no record is without its part."""
    write(files, name(3), 0, 1)
    write(files, name(6), 0, 1)
    removed = []
    monkeypatch.setattr(
        LocalDirectory, "remove", lambda self, file: removed.append(Path(file).suffix)
    )
    files.remove_old(TOKEN, name(99), keep=1)

    assert removed == [".json", ".json", ".part", ".part"]


def test_a_run_begins_where_the_others_see_it(files, tmp_path):
    write(files, name(3, run=7), 0, 1)

    assert files.begin_run(TOKEN) == 8
    files.require_run(TOKEN)
    with pytest.raises(RingKerasError, match=r"RK518.*found '01234567'"):
        files.require_run("76543210")
    with pytest.raises(RingKerasError, match=r"RK518.*found 'nothing: "):
        CheckpointFiles(tmp_path / "elsewhere").require_run(TOKEN)


def test_what_cannot_be_reached_is_not_damaged(monkeypatch):
    """It would be taken for lost, and removed later."""
    memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem
    files = CheckpointFiles("memory://out-of-reach")
    for steps in (3, 6):
        write(files, name(steps, size=1), 0)

    def unreachable(*_, **__):
        raise ConnectionError("503 Slow Down")

    monkeypatch.setattr(memory, "get_file", unreachable)
    with (
        pytest.raises(RingKerasError, match="503 Slow Down"),
        newest_whole(files, least_steps=0, ended=set()),
    ):
        pass
