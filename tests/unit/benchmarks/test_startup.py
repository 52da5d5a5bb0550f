"""`python -m benchmarks startup`, with what is always there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.places import ROOT_DIR

pytestmark = pytest.mark.slow


def test_every_figure_of_every_package(tmp_path: Path) -> None:
    written = tmp_path / "startup.json"
    command = [sys.executable, "-m", "benchmarks", "startup", "--launches", "1"]
    shown = subprocess.run(
        [*command, "--json", str(written)],
        env={**os.environ, "RING_KERAS_PEERS": str(tmp_path)},
        cwd=ROOT_DIR,
        timeout=150,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    launches = json.loads(written.read_text())["launches"]
    assert launches.keys() == {"Keras alone", "ring_keras"}
    for (one,) in launches.values():
        assert one["first step"] > 0
        # Of two ranks, one has half of what they share, or more.
        assert one["most resident"] >= one["its share"] > one["most resident"] / 2
        for figure in one:
            assert f"| {figure}," in shown
