"""The examples, as their first lines say to run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES_DIR = Path(__file__).parents[2] / "examples"


def run_example(name: str, *flags: str, size: int = 2) -> str:
    """What it prints on rank 0."""
    command = [sys.executable, str(EXAMPLES_DIR / name), *flags]
    if size > 1:
        command = [
            *(sys.executable, "-m", "ring_keras.launch", "-np", str(size)),
            *command,
        ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def test_digits_are_learned_and_compared(tmp_path: Path) -> None:
    model = tmp_path / "digits.keras"

    printed = run_example("keras_digits.py", f"--output={model}")

    assert model.exists()
    # One progress bar: that of rank 0.
    assert "[0] Epoch 1/" in printed
    assert "[1] Epoch 1/" not in printed
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)% on 2 rank\(s\)\n", printed)
    assert float(accuracy) >= 97
    (line,) = [x for x in printed.splitlines() if x.startswith("[0] comparison: ")]
    alone, first, last = re.search(
        r"([\d.]+)% in one process .* differs by (\S+) in the first epoch "
        r"and (\S+) in the last",
        line,
    ).groups()
    assert abs(float(alone) - float(accuracy)) < 1
    assert float(first) < 1e-5
    assert float(last) < 1e-3


@pytest.mark.parametrize("size", [1, 2])
def test_the_custom_loop_runs_with_and_without_a_launcher(size: int) -> None:
    assert "accuracy" in run_example("custom_loop.py", size=size)


def test_an_uncaught_exception_is_told_to_the_other_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import ring_keras as ring\n"
        "ring.init()\n"
        "if ring.rank() == 1:\n"
        "    raise ValueError('bad batch 17')\n"
        "ring.barrier()\n"
    )
    command = [sys.executable, "-m", "ring_keras.launch", "-np", "2"]
    ended = subprocess.run(
        [*command, sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 1
    lost = [x for x in ended.stderr.splitlines() if "PeerLostError" in x]
    assert any("raised ValueError: bad batch 17" in x for x in lost), ended.stderr
    assert "ringrun: rank 1 (host " in ended.stderr.splitlines()[-1]
