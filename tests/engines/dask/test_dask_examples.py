"""What users are shown, as it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.engine_scripts import (
    require_digits_of_ringrun,
    run_script,
    script_of_docs,
)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
pytest.importorskip("dask", reason="`make test-engines`")


def test_the_page_of_docs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(script_of_docs("Dask"))

    losses = json.loads(run_script(script))

    assert len(losses) == 2
    assert losses[0] == losses[1] < 0.1


def test_the_page_of_docs_on_elastic_jobs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(script_of_docs("Elastic jobs on Dask"))

    losses = json.loads(run_script(script).splitlines()[-1])

    assert len(losses) == 2
    assert losses[0] == losses[1] < 0.1


def test_the_digits_are_what_they_are_under_ringrun(tmp_path: Path) -> None:
    require_digits_of_ringrun("dask_digits.py", tmp_path)
