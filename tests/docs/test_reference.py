"""The API reference has every public name, and its examples are true."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import RankPool, run_ranks
from support.doc_examples import (
    REFERENCE_DIR,
    documented_names,
    examples_of,
    find,
    run_examples,
)
from support.processes import wait_until

ROOT_DIR = Path(__file__).parents[2]
RECORD = ROOT_DIR / "tests" / "unit" / "api.txt"

# They start a job of their own, from one process.
START_JOBS = {"ring_keras.run", "ring_keras.RankFailedError"}
# They leave the job that they are in.
LEAVE = {
    "ring_keras.errors.CommunicationError",
    "ring_keras.errors.NotInitializedError",
    "ring_keras.init",
    "ring_keras.shutdown",
    "ring_keras.verify.compare",
}
# What no example here can do, and which test does instead.
CANNOT_RUN = {
    "ring_keras.breakpoint": "asks at a terminal; "
    "tests/distributed/launch/test_ringrun_debugger.py",
    "ring_keras.data.service.compute_worker_fn": "returns when its job's registry is "
    "shut down; tests/distributed/data/test_data_service.py",
    "ring_keras.data.tensorflow_io": "needs TensorFlow 2.16; "
    "tests/distributed/test_tensorflow_io.py",
}


def public_names() -> list[str]:
    return [line.split("(")[0].split(":")[0] for line in RECORD.read_text().split("\n")]


@pytest.fixture(scope="module")
def documented() -> list[str]:
    return documented_names()


def test_every_public_name_is_in_the_reference(documented: list[str]) -> None:
    objects = [find(name) for name in documented]
    text = "".join(page.read_text() for page in REFERENCE_DIR.glob("*.md"))
    missing = []
    for name in filter(None, public_names()):
        value = find(name)
        if inspect.ismodule(value) or name.endswith(".__version__"):
            continue
        is_there = any(value is one for one in objects)
        is_mentioned = f"`{name.replace('ring_keras', 'ring', 1)}`" in text
        if not is_there and not is_mentioned and f"`{name}`" not in text:
            missing.append(name)
    assert not missing


def test_the_reference_has_public_names_only(documented: list[str]) -> None:
    assert sorted(set(documented) - set(public_names())) == []
    assert len(set(documented)) == len(documented)


@pytest.mark.parametrize("name", documented_names())
def test_the_docstring_is_complete(name: str) -> None:
    value = find(name)
    text = inspect.getdoc(value) or ""
    assert examples_of(name), f"{name} has no example"
    if inspect.isclass(value):
        if issubclass(value, Exception) or hasattr(value, "__members__"):
            return
        has_arguments = bool(inspect.signature(value).parameters)
        assert not has_arguments or "\nArgs:" in text or "\nAttributes:" in text
        return
    signature = inspect.signature(value)
    assert not signature.parameters or "\nArgs:" in text
    returns = inspect.unwrap(value).__annotations__.get("return")
    if signature.parameters and returns not in (None, "None"):
        assert any(f"\n{word}:" in text for word in ("Returns", "Yields"))


def in_a_pool(name: str, directory: str, extra: dict[str, Any]) -> None:
    run_examples(name, Path(directory), extra)


def alone(name: str, directory: str) -> None:
    import ring_keras

    ring_keras.init()
    run_examples(name, Path(directory), {})
    ring_keras.shutdown()


@pytest.fixture
def extra(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What an example finds where it runs."""
    (name,) = [request.node.callspec.params["name"]]
    if name.endswith(".shard_kafka"):
        from support.kafka_broker import Broker

        broker = Broker()
        for partition in range(2):
            broker.write_values("clicks", partition, [str(n) for n in range(16)])
        yield {"brokers": broker.config["bootstrap.servers"]}
    elif ".data.service." in name:
        command = [sys.executable, "-m", "ring_keras.launch", "-np", "2"]
        command += [sys.executable, "-m", "ring_keras.data.service", "service.json"]
        with subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as servers:
            wait_until((tmp_path / "service.json").exists, "servers are there", 90)
            yield {}
            servers.terminate()
    else:
        yield {}


def environment() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": str(ROOT_DIR)}


IN_A_POOL = [
    name
    for name in documented_names()
    if name not in START_JOBS | LEAVE | set(CANNOT_RUN)
]


@pytest.mark.docs
@pytest.mark.parametrize("name", IN_A_POOL)
def test_the_example_is_true(
    name: str, tmp_path: Path, extra: dict[str, Any], rank_pool: Any
) -> None:
    if "opentelemetry" in name:
        pytest.importorskip("opentelemetry", reason="needs the extra opentelemetry")
    pool: RankPool = rank_pool(2)
    pool.run(in_a_pool, args=(name, str(tmp_path), extra), timeout_s=90)


@pytest.mark.docs
@pytest.mark.parametrize("name", sorted(LEAVE))
def test_the_example_that_leaves_the_job_is_true(name: str, tmp_path: Path) -> None:
    run_ranks(alone, 2, args=(name, str(tmp_path)), timeout_s=120)


@pytest.mark.docs
@pytest.mark.parametrize("name", sorted(START_JOBS))
def test_the_example_that_starts_a_job_is_true(name: str, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; sys.path.insert(0, 'tests')\n"
        "from support.doc_examples import run_examples\n"
        f"run_examples({name!r}, pathlib.Path({str(tmp_path)!r}), {{}})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT_DIR,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


def test_what_cannot_run_is_documented() -> None:
    assert set(CANNOT_RUN) <= set(documented_names())
    for name in CANNOT_RUN:
        importlib.import_module(name.rpartition(".")[0])
