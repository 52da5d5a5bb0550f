"""What `make` compiles while pip works is seen if it fails, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from build_support.cmake_build import ROOT_DIR

MEANWHILE = (sys.executable, str(ROOT_DIR / "build_support" / "meanwhile.py"))
# Ends only if somebody ends it.
ENDLESS = "echo $$ >pid.new; mv pid.new pid; exec sleep 600"
AWAIT = "until [ -e pid ]; do :; done;"


def start(directory: Path, background: str, command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*MEANWHILE, "logs/log", background, "sh", "-c", command],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_ended(directory: Path) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int((directory / "pid").read_text()), 0)


def test_words_of_the_background_are_shown_if_it_fails(tmp_path: Path) -> None:
    running = start(tmp_path, "echo no such header; exit 2", "echo pip")
    stdout, stderr = running.communicate(timeout=30)
    assert (running.returncode, stdout) == (1, "pip\n")
    assert "no such header" in stderr
    assert "`echo no such header; exit 2` failed" in stderr


def test_background_is_waited_for_and_quiet(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    running = start(tmp_path, "cat go; touch done", "echo words >go")
    assert running.communicate(timeout=30) == ("", "")
    assert running.returncode == 0
    assert (tmp_path / "done").exists()
    assert (tmp_path / "logs" / "log").read_text() == "words\n"


def test_command_that_fails_ends_the_background(tmp_path: Path) -> None:
    running = start(tmp_path, ENDLESS, f"{AWAIT} exit 3")
    running.communicate(timeout=30)
    assert running.returncode == 3
    assert_ended(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_signal_ends_both(tmp_path: Path, number: signal.Signals) -> None:
    running = start(tmp_path, ENDLESS, f"{AWAIT} echo $$; exec sleep 600")
    assert running.stdout is not None
    command = int(running.stdout.readline())
    running.send_signal(number)
    running.communicate(timeout=30)
    assert running.returncode == 128 + number
    assert_ended(tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(command, 0)
