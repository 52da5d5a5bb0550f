"""Each file once, whatever it is found by."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the extra parquet")
fsspec = pytest.importorskip("fsspec", reason="needs the extra parquet")

from ring_keras.data.find_files import find_files  # noqa: E402


@pytest.fixture
def days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Partitions as Hive has them, in the working directory."""
    for name in ("day=1/a", "day=1/hour=2/b", "day=2/a", "night=1/a", "day=3/_c/a"):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / "data" / "day=4").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*paths: str, filesystem: object = None) -> list[str]:
    return [file.path for file in find_files(paths, filesystem)]


def test_a_file_with_two_names_is_one(days: Path) -> None:
    relative = "data/day=2/a"
    others = [f"./{relative}", f"{days}/{relative}", f"file://{days}/{relative}"]

    assert found(relative, *others) == [relative]
    assert found(*reversed(others)) == [f"{days}/{relative}"]


def test_a_path_in_two_file_systems_is_two_files(days: Path) -> None:
    path = f"{days}/data/day=2/a"
    fsspec.filesystem("memory").touch(path)

    both = find_files([path, f"memory://{path}", f"memory:/{path}"], None)

    assert [file.path for file in both] == [path, path]
    assert both[0].system != both[1].system


def test_a_directory_that_matches_is_all_that_is_below_it(days: Path) -> None:
    first = ["data/day=1/a", "data/day=1/hour=2/b"]
    assert found("data/day=1") == first
    assert found("data/day=*") == [*first, "data/day=2/a", "data/day=4"]
    assert found("data/*=1/hour=?") == ["data/day=1/hour=2/b"]
    assert found("data/*/a") == ["data/day=1/a", "data/day=2/a", "data/night=1/a"]
    assert found("data/day=[5-9]") == []
