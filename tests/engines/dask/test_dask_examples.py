"""What users are shown, as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.engines
pytest.importorskip("distributed", reason="`make test-engines`")


ROOT_DIR = Path(__file__).parents[3]


def run_script(*command: str | Path) -> str:
    path = os.pathsep.join([str(ROOT_DIR), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=150,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def test_the_page_of_docs(tmp_path: Path) -> None:
    page = (ROOT_DIR / "docs/engines.md").read_text()
    _, _, section = page.partition("\n## Dask\n")
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    script = tmp_path / "train.py"
    script.write_text(code.group(1))

    losses = eval(run_script(script))  # A list of two numbers.

    assert len(losses) == 2
    assert losses[0] == losses[1] < 0.1


def weights_in(path: Path) -> list[object]:
    import keras

    return keras.saving.load_model(path, compile=False).get_weights()


def test_the_digits_are_what_they_are_under_ringrun(tmp_path: Path) -> None:
    here, there = tmp_path / "dask.keras", tmp_path / "ringrun.keras"
    examples = ROOT_DIR / "examples"

    printed = run_script(examples / "dask_digits.py", f"--output={here}")
    ringrun = ["-m", "ring_keras.launch", "-np", "2", sys.executable]
    run_script(*ringrun, examples / "digits_training.py", f"--output={there}")

    (accuracy,) = re.findall(r"test accuracy ([\d.]+)% on 2 rank\(s\)", printed)
    assert float(accuracy) >= 96
    for one, other in zip(weights_in(here), weights_in(there), strict=True):
        np.testing.assert_array_equal(one, other)
