"""What users of an engine are shown, run as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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
    _, _, rest = page.partition(f"\n## {section}\n")
    code = re.search(r"```python\n(.*?)```", rest, re.DOTALL)
    assert code is not None
    return code.group(1)


def weights_in(path: Path) -> list[object]:
    """Of a model that was saved there."""
    import keras

    return keras.saving.load_model(path, compile=False).get_weights()


def digits_under_ringrun(path: Path) -> list[object]:
    """The weights that examples/digits_training.py has on two ranks, and saves."""
    ringrun = ["-m", "ring_keras.launch", "-np", "2", sys.executable]
    run_script(*ringrun, EXAMPLES_DIR / "digits_training.py", f"--output={path}")
    return weights_in(path)
