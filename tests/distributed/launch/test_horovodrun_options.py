"""Command lines that were written for `horovodrun`."""

from __future__ import annotations

import re
import sys

import pytest

from ring_keras.launch.horovodrun import _IGNORED, _REFUSED


def environment_of(ringrun, *options: str) -> dict[str, str]:
    """What rank 0 would get."""
    finished = ringrun.finish(
        ringrun.start_raw("-np", "2", *options, "--dry-run", sys.executable)
    )
    assert finished.returncode == 0, finished.stderr
    first = finished.stdout.decode().splitlines()[0]
    return dict(word.split("=", 1) for word in first.split() if "=" in word)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ("--fusion-threshold-mb 32", "BUCKET_SIZE_BYTES", str(32 << 20)),
        ("--fusion-threshold-mb 0", "BUCKET_SIZE_BYTES", "1"),
        ("--autotune", "AUTOTUNE", "1"),
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
def test_options_become_variables(ringrun, options, name, value):
    found = environment_of(ringrun, *options.split())
    assert found.get(f"RING_KERAS_{name}") == value


@pytest.mark.parametrize("name", [n for names in _IGNORED for n in names.split()])
def test_what_does_nothing_is_said_and_the_job_runs(ringrun, name):
    (count,) = [c for names, (c, _) in _IGNORED.items() if name in names.split()]
    values = ["1"] * count

    finished = ringrun.run("pass", name, *values, size=1)

    assert finished.returncode == 0
    assert finished.stderr.decode().startswith(f"ringrun: {name} does nothing: ")


@pytest.mark.parametrize("name", [n for names in _REFUSED for n in names.split()])
def test_what_is_not_there_ends_ringrun(ringrun, name):
    (count,) = [c for names, (c, _) in _REFUSED.items() if name in names.split()]
    values = ["1"] * count

    finished = ringrun.run("note('ran')", name, *values, size=1)

    assert finished.returncode == 2
    assert f"{name} is not supported: " in finished.stderr.decode()
    assert not (ringrun.directory / "ran").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-H elsewhere:2", "on this machine alone"),
        ("-H localhost:1", "as many slots"),
        ("-H localhost:two", "takes HOST:SLOTS"),
        ("-H localhost:2 -hostfile hosts", "not allowed with"),
        ("-hostfile missing", "No such file"),
        ("--fusion-threshold-mb big", "whole number"),
    ],
)
def test_hosts_and_numbers_that_cannot_be(ringrun, options, message):
    finished = ringrun.run("note('ran')", *options.split())

    assert finished.returncode == 2
    assert message in finished.stderr.decode()
    assert not (ringrun.directory / "ran").exists()


def test_a_hostfile_may_name_this_machine(ringrun, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# ours\nlocalhost slots=1\n127.0.0.1\n\n")

    finished = ringrun.run("print(rank)", "--hostfile", str(hosts), size=2)

    assert sorted(finished.stdout.decode().split()) == ["0", "1", "[0]", "[1]"]


def test_output_filename_holds_each_ranks_output(ringrun, tmp_path):
    directory = tmp_path / "logs"

    ringrun.run("print(rank)", "--output-filename", str(directory), size=2)

    assert [
        (directory / f"rank.{rank}" / "stdout").read_text() for rank in range(2)
    ] == ["0\n", "1\n"]


@pytest.mark.parametrize(
    "option", ["-prefix-timestamp", "--prefix-output-with-timestamp"]
)
def test_lines_may_begin_with_the_time(ringrun, option):
    finished = ringrun.run("print('out')", option, size=1)

    line = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d \[0\] out\n"
    assert re.fullmatch(line, finished.stdout.decode())


def test_check_build_has_its_short_name(ringrun):
    finished = ringrun.finish(ringrun.start_raw("-cb"))
    assert b"TensorFlow" in finished.stdout
