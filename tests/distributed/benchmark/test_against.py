"""`python -m benchmarks --against`: another checkout in the same run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.places import ROOT_DIR

pytestmark = pytest.mark.slow


def run(
    tmp_path: Path, checkout: Path
) -> tuple[subprocess.CompletedProcess[str], dict]:
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "tensors"]
    command += ["--rounds", "6", "--round-s", "0.01", "--against", str(checkout)]
    command += ["--json", str(output)]
    ended = subprocess.run(
        command, cwd=ROOT_DIR, capture_output=True, text=True, timeout=300, check=False
    )
    (table,) = json.loads(output.read_text())["sections"]
    return ended, table


def test_both_checkouts_are_measured(tmp_path):
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT_DIR / "ring_keras", checkout / "ring_keras")
    version = checkout / "ring_keras" / "_version.py"
    version.write_text('__version__ = "another one"\n')

    ended, table = run(tmp_path, checkout)

    assert ended.returncode == 0, ended.stderr
    rows = ("ring_keras, TF ops", f"ring_keras, TF ops ({checkout})")
    assert [len(table["seconds"][row]["4 B"]) for row in rows] == [6, 6]
    assert f"ring_keras in TensorFlow of {checkout}: " in ended.stdout
    assert "another one" in ended.stdout
    assert f"since {checkout}: changes" in ended.stdout
    assert re.search(r"\| ring_keras, TF ops, 4 B +\|", ended.stdout)


def test_a_checkout_that_does_not_run_is_named_and_the_others_are_measured(tmp_path):
    package = tmp_path / "checkout" / "ring_keras"
    package.mkdir(parents=True)
    (package / "_build_info.json").touch()
    (package / "__init__.py").write_text("raise SystemExit('broken here')\n")

    ended, table = run(tmp_path, package.parent)

    assert ended.returncode == 1
    assert len(table["seconds"]["ring_keras, TF ops"]["4 B"]) == 6
    assert "broken here" in "\n".join(table["failures"])
