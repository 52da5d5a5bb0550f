"""Networks of KerasHub."""

from __future__ import annotations

import re
import sys

import pytest
from support.engine_scripts import EXAMPLES_DIR, run_script

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


def test_a_classifier_is_trained_alike_on_all_ranks() -> None:
    pytest.importorskip("keras_hub", reason="`make test-engines`")
    ringrun = ["-m", "ring_keras.launch", "-np", "2", sys.executable]

    printed = run_script(*ringrun, EXAMPLES_DIR / "keras_hub_classifier.py")

    ends = re.findall(r"^\[\d\] accuracy ([\d.]+)%; (.*)$", printed, re.MULTILINE)
    assert len(ends) == 2
    assert ends[0] == ends[1]
    assert float(ends[0][0]) > 90
