"""Command lines that were written for `horovodrun`, and the jobs they start."""

from __future__ import annotations

import re

import pytest


def test_what_does_nothing_is_said_and_the_job_runs(ringrun):
    options = ["--cycle-time-ms", "2", "--gloo", "--no-hierarchical-allreduce"]

    finished = ringrun.run("print(rank)", *options, size=1)

    assert finished.stdout == b"[0] 0\n"
    assert [
        line.partition(" does nothing: ")[0]
        for line in finished.stderr.decode().splitlines()
    ] == [f"ringrun: {option}" for option in options if option != "2"]


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


@pytest.mark.slow
def test_check_build_has_its_short_name(ringrun):
    finished = ringrun.finish(ringrun.start_raw("-cb"))
    assert b"TensorFlow" in finished.stdout
