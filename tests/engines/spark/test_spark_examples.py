"""What users are shown of Spark."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.engine_scripts import (
    EXAMPLES_DIR,
    digits_under_ringrun,
    run_script,
    script_of_docs,
    weights_in,
)

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java"),
]
pytest.importorskip("pyspark", reason="`make test-engines`")


def test_the_page_of_docs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(script_of_docs("Spark"))

    losses = json.loads(run_script(script))

    assert len(losses) == 2
    assert losses[0] == losses[1] < 0.1


def test_the_digits_are_what_they_are_under_ringrun(tmp_path: Path) -> None:
    here = tmp_path / "spark.keras"

    printed = run_script(EXAMPLES_DIR / "spark_digits.py", f"--output={here}")

    (accuracy,) = re.findall(r"test accuracy ([\d.]+)% on 2 rank\(s\)", printed)
    assert float(accuracy) >= 96
    there = digits_under_ringrun(tmp_path / "ringrun.keras")
    for one, other in zip(weights_in(here), there, strict=True):
        np.testing.assert_array_equal(one, other)
