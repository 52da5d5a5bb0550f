"""The files in which measured settings are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ring_keras.autotune import cache
from ring_keras.config import cache_directory

KEY = {"ranks": ["a: 2 x cpu", "b: 2 x cpu"], "ring_keras": "1"}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ring_keras"


def test_what_is_saved_is_loaded(directory: Path) -> None:
    cache.save(KEY, {"a": 1, "b": 1 << 40})

    assert cache.load(KEY, ["a", "b"]) == {"a": 1, "b": 1 << 40}
    assert len(list(directory.iterdir())) == 1, "no unfinished file stays"


def test_another_job_has_a_file_of_its_own(directory: Path) -> None:
    cache.save(KEY, {"a": 1})

    assert cache.load(KEY | {"ring_keras": "2"}, ["a"]) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        json.dumps({"key": {}, "settings": {"a": 1}}).encode(),
    ],
)
def test_a_damaged_file_is_told_of_and_ignored(
    directory: Path, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    cache.save(KEY, {"a": 1})
    (file,) = directory.iterdir()
    file.write_bytes(content)

    assert cache.load(KEY, ["a"]) is None
    said = capfd.readouterr().err
    assert str(file) in said
    assert "WARNING" in said


@pytest.mark.parametrize("settings", [{}, {"a": "1"}, {"a": -1}, {"a": 1.5}])
def test_settings_that_make_no_sense_are_ignored(
    directory: Path, settings: dict[str, object], capfd: pytest.CaptureFixture[str]
) -> None:
    cache.save(KEY, {"a": 1})
    (file,) = directory.iterdir()
    content = json.loads(file.read_text()) | {"settings": settings}
    file.write_text(json.dumps(content))

    assert cache.load(KEY, ["a"]) is None
    assert "cannot be used" in capfd.readouterr().err


def test_a_directory_that_cannot_be_made_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    cache.save(KEY, {"a": 1})

    assert "cannot write" in capfd.readouterr().err
    assert cache.load(KEY, ["a"]) is None


def test_the_directory_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_directory() == tmp_path / "ring_keras"
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_directory() == Path("/home/someone/.cache/ring_keras")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path("/home/someone/.cache/ring_keras")
