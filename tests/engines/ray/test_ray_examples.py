"""What users are shown, as it is written."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support.engine_scripts import (
    EXAMPLES_DIR,
    require_digits_of_ringrun,
    run_script,
    script_of_docs,
)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
pytest.importorskip("ray", reason="`make test-engines`")


@pytest.fixture(autouse=True)
def on_the_cluster(cluster: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)  # type: ignore[attr-defined]


def test_the_page_of_docs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(script_of_docs("Ray"))

    printed = run_script(script)

    (loss,) = re.findall(r"^loss (\S+) after 5 epochs$", printed, re.MULTILINE)
    assert float(loss) < 0.1


def test_the_page_of_docs_on_elastic_jobs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(script_of_docs("Elastic jobs on Ray"))

    losses = ast.literal_eval(run_script(script).splitlines()[-1])

    assert len(losses) == 2
    assert losses[0] == losses[1] < 0.1


def test_the_digits_are_what_they_are_under_ringrun(tmp_path: Path) -> None:
    require_digits_of_ringrun("ray_digits.py", tmp_path)


def test_tune_finds_the_better_rate() -> None:
    printed = run_script(EXAMPLES_DIR / "ray_tune.py", "--epochs=5", "--concurrent=2")

    accuracies = dict(
        re.findall(r"^learning rate (\S+): test accuracy (\S+)%$", printed, re.M)
    )
    assert set(accuracies) == {"5e-05", "0.005"}
    assert float(accuracies["0.005"]) > float(accuracies["5e-05"])
    assert "best: 0.005" in printed
