"""tensorflow-io where it works, and what is said where it does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import ring_keras as ring

EXAMPLE = Path(__file__).parents[2] / "examples" / "read_over_http.py"
WORKS = tf.__version__.startswith("2.16.")


@pytest.mark.skipif(not WORKS, reason="needs TensorFlow 2.16: `make versions`")
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_read_their_own_files_over_http(size: int) -> None:
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "ring_keras.launch", "-np", str(size)),
            *(sys.executable, str(EXAMPLE)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    (accuracy,) = re.findall(rf"accuracy ([\d.]+)% on {size} rank\(s\)", ended.stdout)
    assert float(accuracy) >= 90


@pytest.mark.skipif(WORKS, reason="says so with other versions of TensorFlow only")
def test_names_the_version_it_needs_and_the_one_there_is() -> None:
    with pytest.raises(ImportError) as raised:
        ring.data.tensorflow_io()
    assert "TensorFlow 2.16 only" in str(raised.value)
    assert f"Received: TensorFlow {tf.__version__}" in str(raised.value)
