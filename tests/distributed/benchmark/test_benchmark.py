"""`ring benchmark` on real ranks, with tiny buffers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.stand_in import stand_in_environment

from ring_keras.benchmark.collectives import COLLECTIVES
from ring_keras.benchmark.numpy_calls import BUFFERS

TINY = ["--min-bytes", "64", "--max-bytes", "1K", "--iterations", "2"]


def run_benchmark(
    size: int, *options: str, variables: Mapping[str, str] | None = None
) -> str:
    """What rank 0 prints."""
    command = [sys.executable, "-m", "ring_keras.benchmark", *TINY, *options]
    if size > 1:
        launcher = [sys.executable, "-m", "ring_keras.launch", "-np", str(size)]
        command = launcher + command
    environment = {**os.environ, **(variables or {})}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return re.sub(r"^\[0\] ", "", ended.stdout, flags=re.MULTILINE)


def check_rows(content: dict[str, Any], size: int, name: str) -> None:
    assert [row["collective"] for row in content["rows"]] == [name] * 3
    for row in content["rows"]:
        assert row["wrong"] == 0
        times = row["timing"]
        assert 0 < times["least_s"] <= times["median_s"] <= times["greatest_s"]
        assert row["bus_gbps"] == row["algorithm_gbps"] * row["bus_factor"]
    assert content["job"]["ranks"] == size == len(content["job"]["hosts"])
    assert content["job"]["transports"][0] == "self"


def others_are_slow(usual: str) -> list[Any]:
    """All collectives, of which `make test` takes one."""
    return [
        pytest.param(name, marks=[] if name == usual else pytest.mark.slow)
        for name in COLLECTIVES
    ]


@pytest.mark.parametrize("name", others_are_slow("allreduce"))
@pytest.mark.parametrize("size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_collective(size: int, name: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"

    printed = run_benchmark(size, name, "--json", str(file))

    content = json.loads(file.read_text())
    check_rows(content, size, name)
    lines = printed.splitlines()
    assert f"ranks: {size}; hosts: " in printed
    assert ("ringrun -np 2 ring benchmark" in printed) == (size == 1)
    table = [line.split() for line in lines if not line.startswith("#")][-3:]
    for row, cells in zip(content["rows"], table, strict=True):
        assert cells[:3] == [str(row["nbytes"]), str(row["count"]), "float32"]
        assert cells[-1] == "0"


@pytest.mark.slow
def test_after_autotuning(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    variables = {"RING_KERAS_AUTOTUNE": "1", "XDG_CACHE_HOME": str(tmp_path)}

    run_benchmark(2, "allreduce", "--json", str(file), variables=variables)

    check_rows(json.loads(file.read_text()), 2, "allreduce")


@pytest.mark.parametrize(
    "buffers",
    [
        pytest.param(
            name, marks=() if name in ("new", "shared-in-place") else pytest.mark.slow
        )
        for name in BUFFERS
    ],
)
def test_every_kind_of_buffers(buffers: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"

    run_benchmark(2, "--buffers", buffers, "--json", str(file))

    content = json.loads(file.read_text())
    check_rows(content, 2, "allreduce")
    assert {row["buffers"] for row in content["rows"]} == {buffers}


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
def test_another_dtype_and_op(dtype: str) -> None:
    printed = run_benchmark(2, "reduce_scatter", "--dtype", dtype, "--op", "max")

    assert re.search(
        rf"^ +64 +{64 if dtype == 'uint8' else 32} .* max .* 0$", printed, re.M
    )


@pytest.mark.parametrize("name", others_are_slow("allreduce"))
def test_gpu_memory(name: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"

    printed = run_benchmark(
        *(2, name, "--device", "gpu", "--json", str(file)),
        variables=stand_in_environment(),
    )

    content = json.loads(file.read_text())
    check_rows(content, 2, name)
    assert {row["buffers"] for row in content["rows"]} == {"gpu"}
    assert "480 GB/s on 8 H100" in printed


@pytest.mark.slow  # The ops themselves are tested in ops/.
@pytest.mark.parametrize("name", COLLECTIVES)
def test_tensorflow_ops(name: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"

    printed = run_benchmark(2, name, "--tensorflow", "--json", str(file))

    check_rows(json.loads(file.read_text()), 2, name)
    assert "by the TensorFlow op" in printed
    assert "TensorFlow 2." in printed
