"""What users are shown of Spark."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from support.engine_scripts import (
    EXAMPLES_DIR,
    require_digits_of_ringrun,
    run_script,
    script_of_docs,
)

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java"),
]
pytest.importorskip("pyspark", reason="`make test-engines`")


def test_the_page_of_docs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(script_of_docs("Spark"))

    losses = json.loads(run_script(script))

    assert len(losses) == 2
    assert losses[0] == losses[1] < 0.1


def test_the_page_of_docs_on_elastic_jobs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(script_of_docs("Elastic jobs on Spark"))

    losses = json.loads(run_script(script).splitlines()[-1])

    assert len(losses) == 2
    assert losses[0] == losses[1] < 0.1


def test_the_data_frame_of_docs(tmp_path: Path) -> None:
    script = tmp_path / "fit.py"
    script.write_text(script_of_docs("Data frames"))

    error = float(run_script(script))

    assert error < 0.1


def test_the_estimator_learns_digits() -> None:
    printed = run_script(EXAMPLES_DIR / "spark_estimator.py")

    (accuracy,) = re.findall(r"test accuracy ([\d.]+)%", printed)
    assert float(accuracy) >= 94


def test_the_digits_are_what_they_are_under_ringrun(tmp_path: Path) -> None:
    require_digits_of_ringrun("spark_digits.py", tmp_path)
