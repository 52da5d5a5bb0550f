"""Keras's `fit` on torch and JAX beside one process on the global batch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.back_ends import BACK_END, begin, needs_back_end, ranks
from support.feature_fits import FEATURES, NORMALIZED, trained

needs_back_end()

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

WIDE = {"JAX_ENABLE_X64": "1"}
# Losses of Keras are of 32 bits on torch.
CLOSE = {"rtol": 1e-6, "atol": 1e-7}
# docs/keras.md, "What is not exact".
REPORTED_OTHERWISE = (
    "summed_loss",
    "weighted_mean",
    "weighted_accumulation",
    "weightless_batch",
    "overflows_on_one_rank",
    "normalized_weighted",
    "normalized_summed",
)


def alone_worker():
    return {name: trained(name) for name in FEATURES}


def job_worker():
    ring = begin()
    return {name: trained(name, jobs_rank=ring.rank()) for name in FEATURES}


@pytest.fixture(scope="module")
def alone():
    return ranks(alone_worker, 1, env=WIDE, timeout_s=300)[0]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def everyone(request):
    return ranks(job_worker, request.param, env=WIDE, timeout_s=600)


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_that_of_one_process(name, alone, everyone):
    history, weights = alone[name]
    close = NORMALIZED if name.startswith("normalized") else CLOSE
    for of_rank in everyone:
        got_history, got = of_rank[name]
        for one, other in zip(got, weights, strict=True):
            np.testing.assert_allclose(one, other, **close)
        for first, own in zip(everyone[0][name][1], got, strict=True):
            np.testing.assert_array_equal(first, own)
        assert got_history.keys() == history.keys()
        for key in () if name in REPORTED_OTHERWISE else history:
            np.testing.assert_allclose(got_history[key], history[key], rtol=1e-5)


def test_the_example_for_any_back_end_runs():
    example = Path(__file__).parents[3] / "examples" / "any_back_end.py"
    launch = [sys.executable, "-m", "ring_keras.launch", "-np", "2"]
    ended = subprocess.run(
        [*launch, sys.executable, str(example)],
        env=os.environ | {"KERAS_BACKEND": BACK_END, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    found = re.findall(
        rf"rank (\d) of 2 on {BACK_END}: test accuracy ([\d.]+)", ended.stdout
    )
    assert sorted(rank for rank, _ in found) == ["0", "1"]
    assert found[0][1] == found[1][1]
    assert float(found[0][1]) >= 0.93
