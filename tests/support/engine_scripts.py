"""What users of an engine are shown, run as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT_DIR = Path(__file__).parents[2]
EXAMPLES_DIR = ROOT_DIR / "examples"


def run_script(*command: str | Path) -> str:
    """Runs Python with these arguments; what it printed."""
    path = os.pathsep.join([str(ROOT_DIR), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def script_of_docs(section: str) -> str:
    """The script in that section of docs/engines.md."""
    page = (ROOT_DIR / "docs/engines.md").read_text()
    pattern = rf"\n##+ {section}\n.*?```python\n(.*?)```"
    code = re.search(pattern, page, re.DOTALL)
    assert code is not None
    return code.group(1)


def require_digits_of_ringrun(example: str, directory: Path) -> None:
    """That example learns the digits, to the weights that two ranks of ringrun get."""
    here = directory / "engine.keras"
    printed = run_script(EXAMPLES_DIR / example, f"--output={here}")
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)% on 2 rank\(s\)", printed)
    assert float(accuracy) >= 96
    there = directory / "ringrun.keras"
    ringrun = ["-m", "ring_keras.launch", "-np", "2", sys.executable]
    run_script(*ringrun, EXAMPLES_DIR / "digits_training.py", f"--output={there}")
    for one, other in zip(_weights_in(here), _weights_in(there), strict=True):
        np.testing.assert_array_equal(one, other)


def _weights_in(path: Path) -> list[object]:
    import keras

    return keras.saving.load_model(path, compile=False).get_weights()
