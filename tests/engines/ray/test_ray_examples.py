"""What users are shown, as it is written."""

from __future__ import annotations

import re
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


def test_the_digits_are_what_they_are_under_ringrun(tmp_path: Path) -> None:
    here = tmp_path / "ray.keras"

    printed = run_script(EXAMPLES_DIR / "ray_digits.py", f"--output={here}")

    (accuracy,) = re.findall(r"test accuracy ([\d.]+)% on 2 rank\(s\)", printed)
    assert float(accuracy) >= 96
    there = digits_under_ringrun(tmp_path / "ringrun.keras")
    for one, other in zip(weights_in(here), there, strict=True):
        np.testing.assert_array_equal(one, other)


def test_tune_finds_the_better_rate() -> None:
    printed = run_script(EXAMPLES_DIR / "ray_tune.py", "--epochs=5", "--concurrent=2")

    accuracies = dict(
        re.findall(r"^learning rate (\S+): test accuracy (\S+)%$", printed, re.M)
    )
    assert set(accuracies) == {"5e-05", "0.005"}
    assert float(accuracies["0.005"]) > float(accuracies["5e-05"])
    assert "best: 0.005" in printed
