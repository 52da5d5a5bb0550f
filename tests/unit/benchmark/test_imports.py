"""The benchmark starts at once: without `--tensorflow` it imports none."""

import subprocess
import sys

CHECK = """
import sys
import ring_keras.benchmark.run
heavy = {"tensorflow", "keras", "absl"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def test_no_tensorflow() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, timeout=60, check=False
    )

    assert finished.returncode == 0, finished.stderr.decode()
