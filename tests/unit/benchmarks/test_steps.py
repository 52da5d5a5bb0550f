"""`benchmarks/steps.py`, which measures what needs no environment yet."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.peers.places import ROOT_DIR

SCRIPT = r"""
echo words
printf '\n== Compiling\n'
python3 -c 'while sum(__import__("os").times()[:2]) < 0.2: pass'
echo to stderr >&2
printf '\n== Training\n'
echo '== 321 passed, 4 skipped in 12.34s (0:00:12) =='
exit 3
"""


def test_names_each_step_and_shows_and_returns_what_the_command_does() -> None:
    run = subprocess.run(
        [sys.executable, "benchmarks/steps.py", "sh", "-c", SCRIPT],
        cwd=ROOT_DIR,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 3
    assert run.stdout.startswith("words\n\n== Compiling\nto stderr\n\n== Training\n")
    assert "== 321 passed, 4 skipped in 12.34s (0:00:12) ==\n" in run.stdout
    rows = [line.split("|")[1:3] for line in run.stdout.splitlines() if "|" in line]
    seconds = {title.strip(): value for title, value in rows[2:]}
    assert [*seconds] == ["Before the first step", "Compiling", "Training", "**all**"]
    assert float(seconds["Compiling"]) >= 0.1
    assert float(seconds["**all**"]) >= float(seconds["Compiling"])
