"""The benchmarks run, with whatever peers are installed."""

import json
import subprocess
import sys

import pytest

from benchmarks.peers.places import ROOT_DIR

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("section", "ours"),
    [
        ("collectives", "ring_keras"),
        ("tensors", "ring_keras, TF ops"),
        ("gradients", "ring_keras, TF ops"),
        ("training", "ring_keras"),
    ],
)
def test_everyone_who_is_there_is_measured(section, ours, tmp_path) -> None:
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", section]
    command += ["--rounds", "2", "--round-s", "0.01", "--json", str(output)]

    subprocess.run(command, cwd=ROOT_DIR, check=True, timeout=540)

    (table,) = json.loads(output.read_text())["sections"]
    columns = table["seconds"][ours]
    assert all(len(rounds) == 2 for rounds in columns.values())
    assert all(seconds > 0 for rounds in columns.values() for seconds in rounds)
    assert table["failures"] == []
