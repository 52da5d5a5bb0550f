"""Every error's code is in docs/troubleshooting.md, and that is true to the sources."""

import subprocess
import sys
from collections import Counter

import pytest
import tensorflow as tf
from support.error_codes import (
    PACKAGE_DIR,
    PAGE,
    ROOT_DIR,
    core_codes,
    core_messages,
    core_uses,
    entries,
    package_codes,
    package_messages,
)

from ring_keras import errors
from ring_keras._codes import explain
from ring_keras.config import ConfigError

BY_CODE = {entry.code: entry for entry in entries()}
MESSAGES = [*core_messages(), *package_messages()]


def test_each_code_has_one_entry_and_each_entry_a_use() -> None:
    listed = Counter(entry.code for entry in entries())

    assert set(listed) == core_uses() | package_codes()
    assert set(listed.values()) == {1}
    assert list(listed) == sorted(listed), "in their order"


def test_each_code_of_the_core_has_one_name_and_is_used() -> None:
    named = core_codes()

    assert len(set(named.values())) == len(named)
    assert set(named.values()) == core_uses()


def test_the_gatherers_find_what_is_there() -> None:
    assert len(MESSAGES) > 150
    assert {message.code[2] for message in MESSAGES} == set("12345678")


def test_the_page_shows_each_text_of_the_sources() -> None:
    lacking = [
        f"{message.where}: {message.code} does not show {part!r}"
        for message in MESSAGES
        for part in BY_CODE[message.code].lacks(message)
    ]
    assert lacking == []


def test_each_entry_says_what_it_is_and_what_to_do() -> None:
    for entry in entries():
        assert entry.messages, entry.code
        assert all(f"[{entry.code}] " in message for message in entry.messages)
        assert "*What to do:* " in entry.text, entry.code
        assert entry.text.lstrip().startswith("**"), entry.code


def test_our_classes_are_raised_with_a_code() -> None:
    ours = ("RingKerasError", "RankMismatchError", "PeerLostError", "AbsentError")
    ours += ("NotInitializedError", "CollectiveTimeoutError", "ConfigError")
    bare = []
    for path in sorted(PACKAGE_DIR.rglob("*.py")):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            starts = [f"{how}{name}(" for name in ours for how in ("raise ", "return ")]
            if any(start in line for start in starts) and "[RK" not in "".join(
                lines[number : number + 3]
            ):
                bare.append(f"{path.relative_to(ROOT_DIR)}:{number + 1}: {line}")
    # Its text is made elsewhere, with its code.
    assert [line for line in bare if "_first_difference" not in line] == []


def test_the_page_comes_with_the_package() -> None:
    tomllib = pytest.importorskip("tomllib")  # Of Python 3.11.
    project = tomllib.loads((ROOT_DIR / "pyproject.toml").read_text())
    data = project["tool"]["setuptools"]["package-data"]

    assert PAGE.name in data["ring_keras"]
    assert (PACKAGE_DIR / PAGE.name).read_text() == PAGE.read_text()


@pytest.mark.parametrize("given", ["RK302", "rk302", "[RK302]"])
def test_explain_gives_the_entry(given: str) -> None:
    text = explain(given)

    assert text is not None
    assert text.startswith("### RK302\n")
    assert "*What to do:*" in text
    assert "RK303" not in text


def test_ringrun_explains() -> None:
    def run(codes: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "ring_keras.launch", "--explain", codes],
            capture_output=True,
            text=True,
            timeout=60,
        )

    both = run("RK302,RK201")
    assert both.returncode == 0
    assert both.stdout == f"{explain('RK302')}\n{explain('RK201')}\n"
    none = run("RK999")
    assert none.returncode == 2
    assert "no error of this code" in none.stderr


@pytest.mark.parametrize(
    "error",
    [
        errors.PeerLostError("[RK201] rank 1 is gone"),
        errors.RankMismatchError("RankMismatchError: [RK201] x"),
        ConfigError("[RK201] x"),
        ValueError("[RK201] x"),
        tf.errors.UnavailableError(None, None, "node x: PeerLostError: [RK201] rank 1"),
    ],
)
def test_the_code_can_be_read(error: Exception) -> None:
    assert errors.code_of(error) == "RK201"
    if not isinstance(error, ValueError) or isinstance(error, ConfigError):
        assert getattr(error, "code", "RK201") == "RK201"


def test_who_has_none_says_so() -> None:
    assert errors.PeerLostError("rank 1").code is None
    assert errors.code_of(ValueError("[RK12] [RKab1] (RK201)")) is None


def test_the_outer_code_counts() -> None:
    error = errors.RankMismatchError("[RK310] rank 1: [RK402] average of int32")
    assert error.code == "RK310"
