"""What ringrun makes of each of horovodrun's options."""

from __future__ import annotations

import shlex
import sys

import pytest

from ring_keras.launch.cli import main
from ring_keras.launch.horovodrun import _IGNORED, _REFUSED

BY_NAME = {
    name: ["1"] * count
    for table in (_IGNORED, _REFUSED)
    for names, (count, _) in table.items()
    for name in names.split()
}


def names_of(table: dict[str, tuple[int, str]]) -> list[str]:
    return [name for names in table for name in names.split()]


def dry_run(*options: str) -> int:
    return main(["-np", "2", *options, "--dry-run", sys.executable])


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ("--fusion-threshold-mb 32", "BUCKET_SIZE_BYTES", str(32 << 20)),
        ("--fusion-threshold-mb 0", "BUCKET_SIZE_BYTES", "1"),
        ("--autotune", "AUTOTUNE", "1"),
        ("--timeline-filename /a/b.json", "TIMELINE", "/a/b.json"),
        ("--start-timeout 45", "INIT_TIMEOUT_S", "45"),
        ("--stall-check-warning-time-seconds 20", "STALL_TIMEOUT_S", "20"),
        ("--no-stall-check", "STALL_TIMEOUT_S", "1e9"),
        ("--stall-check-shutdown-time-seconds 90", "COLLECTIVE_TIMEOUT_S", "90"),
        ("--stall-check-shutdown-time-seconds 0", "COLLECTIVE_TIMEOUT_S", None),
        ("--gloo-timeout-seconds 90", "COLLECTIVE_TIMEOUT_S", "90"),
        ("--tcp", "TRANSPORT", "tcp"),
        ("--log-level WARNING", "LOG_LEVEL", "warning"),
        ("--log-level TRACE", "LOG_LEVEL", "debug"),
        ("--log-level FATAL", "LOG_LEVEL", "error"),
        ("-H localhost:2 --num-proc 2", "SIZE", "2"),
    ],
)
def test_options_become_variables(capsys, options, name, value):
    assert dry_run(*options.split()) == 0
    first = capsys.readouterr().out.splitlines()[0]
    found = dict(word.split("=", 1) for word in shlex.split(first) if "=" in word)
    assert found.get(f"RING_KERAS_{name}") == value


@pytest.mark.parametrize("name", names_of(_IGNORED))
def test_what_does_nothing_is_said(capfd, name):
    assert dry_run(name, *BY_NAME[name]) == 0
    assert capfd.readouterr().err.startswith(f"ringrun: {name} does nothing: ")


@pytest.mark.parametrize("name", names_of(_REFUSED))
def test_what_is_not_there_ends_ringrun(capsys, name):
    with pytest.raises(SystemExit, match="2"):
        dry_run(name, *BY_NAME[name])
    assert f"{name} is not supported: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-H localhost:1", "as many slots"),
        ("-H localhost:two", "slots must be an integer"),
        ("-H localhost:2 -hostfile hosts", "not allowed with"),
        ("-hostfile missing", "No such file"),
        ("--fusion-threshold-mb big", "whole number"),
    ],
)
def test_hosts_and_numbers_that_cannot_be(capsys, options, message):
    with pytest.raises(SystemExit, match="2"):
        dry_run(*options.split())
    assert message in capsys.readouterr().err
