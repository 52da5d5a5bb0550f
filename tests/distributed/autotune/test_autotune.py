"""RING_KERAS_AUTOTUNE: one choice for all ranks, kept for the next job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import RankOutcome, run_ranks

import ring_keras as ring
from ring_keras import _native
from ring_keras.optimizers import buckets


def tuned() -> dict[str, Any]:
    ring.init()
    noise = np.random.default_rng(ring.rank()).standard_normal(30_000)
    total = _native.allreduce(noise, "sum", "after")
    # A process set takes the choice over.
    everyone_but_0 = ring.add_process_set(range(1, ring.size()))
    if everyone_but_0.included():
        _native.allreduce(
            noise, "sum", "set", communicator_id=everyone_but_0.communicator_id()
        )
    return {
        "tuning": _native.tuning(),
        "bucket": buckets.current_bytes(),
        "total": total.tobytes(),
    }


def run_tuned(size: int, cache: Path, **env: str) -> list[RankOutcome]:
    outcomes = run_ranks(
        tuned,
        size,
        env={"RING_KERAS_AUTOTUNE": "1", "XDG_CACHE_HOME": str(cache), **env},
        check=False,
    )
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        assert outcome.result == outcomes[0].result
    return outcomes


def said(outcomes: list[RankOutcome]) -> str:
    """The line of rank 0; there is only one."""
    lines = [
        (outcome.rank, line)
        for outcome in outcomes
        for line in outcome.stderr.splitlines()
        if "INFO: autotune: " in line
    ]
    ((rank, line),) = lines
    assert rank == 0
    return line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "transport"),
    [
        (2, "auto"),
        pytest.param(2, "tcp", marks=pytest.mark.slow),
        pytest.param(4, "auto", marks=pytest.mark.slow),
        pytest.param(4, "tcp", marks=pytest.mark.slow),
    ],
)
def test_all_ranks_take_one_choice_and_the_next_job_reads_it(
    size: int, transport: str, tmp_path: Path
) -> None:
    first = run_tuned(size, tmp_path, RING_KERAS_TRANSPORT=transport)
    second = run_tuned(size, tmp_path, RING_KERAS_TRANSPORT=transport)

    assert "(measured in " in said(first)
    assert "(read from the cache in " in said(second)
    assert f"bucket_size_bytes={first[0].result['bucket']}" in said(first)
    assert second[0].result["tuning"] == first[0].result["tuning"]
    assert second[0].result["bucket"] == first[0].result["bucket"]
    (file,) = (tmp_path / "ring_keras").iterdir()
    content = json.loads(file.read_text())
    expected = {2: set(), 4: {"shared_flat_max_bytes"}}[size]
    if transport == "tcp":
        expected = {
            "direct_max_bytes",
            "recursive_doubling_max_bytes",
            "parts_max_bytes",
            "halving_max_bytes",
            "trees_max_bytes",
        }
    assert set(content["settings"]) == expected | {"bucket_size_bytes"}
    assert len(content["key"]["ranks"]) == size


@pytest.mark.slow
def test_two_hosts_with_two_ranks_each(tmp_path: Path) -> None:
    outcomes = run_ranks(
        tuned,
        4,
        env=[
            {
                "RING_KERAS_AUTOTUNE": "1",
                "XDG_CACHE_HOME": str(tmp_path),
                "RING_KERAS_HOST_NAME": host,
            }
            for host in ("a", "a", "b", "b")
        ],
        check=False,
    )

    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        assert outcome.result == outcomes[0].result
    assert "INFO: autotune: direct_max_bytes=" in said(outcomes)
    assert "doubling" not in said(outcomes)


@pytest.mark.slow
def test_a_damaged_file_is_ignored_with_a_warning(tmp_path: Path) -> None:
    run_tuned(2, tmp_path)
    (file,) = (tmp_path / "ring_keras").iterdir()
    file.write_text("{")

    outcomes = run_tuned(2, tmp_path)

    assert f"WARNING: [RK126] autotune: {file} cannot be used" in outcomes[0].stderr
    assert "(measured in " in said(outcomes)
    assert json.loads(file.read_text())["settings"], "mended"


@pytest.mark.slow
def test_what_the_user_sets_stays(tmp_path: Path) -> None:
    outcomes = run_tuned(
        2,
        tmp_path,
        RING_KERAS_TRANSPORT="tcp",
        RING_KERAS_DIRECT_MAX_BYTES="12345",
        RING_KERAS_BUCKET_SIZE_BYTES="54321",
    )

    assert outcomes[0].result["tuning"]["direct_max_bytes"] == 12345
    assert outcomes[0].result["bucket"] == 54321
    assert "direct_max_bytes=" not in said(outcomes)


def untuned() -> dict[str, int]:
    ring.init()
    return _native.tuning() | {"bucket": buckets.current_bytes()}


@pytest.mark.slow
def test_nothing_is_measured_unasked(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}

    alone = run_ranks(untuned, 1, env=env | {"RING_KERAS_AUTOTUNE": "1"})
    results = run_ranks(untuned, 2, env=env)

    assert alone[0] == results[0] == results[1]
    assert results[0]["bucket"] == buckets.DEFAULT_BYTES
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("AUTOTUNE", ("1", "0"), "it is 1 on rank 0 and 0 on rank 1"),
        pytest.param(
            "BUCKET_SIZE_BYTES",
            ("", "9"),
            "it is unset on rank 0 and 9 on rank 1",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_that_would_not_all_measure_are_refused(
    name: str, values: tuple[str, str], message: str, tmp_path: Path
) -> None:
    common = {"RING_KERAS_AUTOTUNE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    env = [common | {f"RING_KERAS_{name}": value} for value in values]

    outcomes = run_ranks(untuned, 2, env=env, check=False)

    for outcome in outcomes:
        assert outcome.exception_type is not None, outcome.describe()
        assert f"RING_KERAS_{name} must be the same on every rank" in outcome.message
        assert message in outcome.message
