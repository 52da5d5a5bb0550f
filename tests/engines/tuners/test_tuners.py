"""Searches in which every trial is a training on all ranks."""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path

import pytest
from support.engine_scripts import EXAMPLES_DIR, run_script

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
RINGRUN = ["-m", "ring_keras.launch", "-np", "2", sys.executable]


def test_optuna_asks_once_for_all_ranks(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="`make test-engines`")
    study = tmp_path / "study.db"
    command = [*RINGRUN, EXAMPLES_DIR / "optuna_search.py", "--epochs=4"]
    command += ["--trials=7", f"--storage=sqlite:///{study}"]

    printed = run_script(*command)

    (best,) = re.findall(r"^\[0\] best: ([\d.]+)% with", printed, re.MULTILINE)
    assert float(best) > 85
    with sqlite3.connect(study) as tables:
        states = [s for (s,) in tables.execute("SELECT state FROM trials")]
    assert len(states) == 7
    # The first five are what others are measured by; of the rest one was given up.
    assert set(states) == {"COMPLETE", "PRUNED"}


def test_keras_tuner_decides_alike_on_all_ranks() -> None:
    pytest.importorskip("keras_tuner", reason="`make test-engines`")

    printed = run_script(*RINGRUN, EXAMPLES_DIR / "keras_tuner_search.py", "--trials=3")

    bests = re.findall(r"^\[\d\] best: (.*)$", printed, re.MULTILINE)
    assert len(bests) == 2
    assert bests[0] == bests[1]
    assert float(bests[0].partition("%")[0]) > 80
