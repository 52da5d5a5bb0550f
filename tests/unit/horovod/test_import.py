"""`import horovod`, where ring_keras stands in for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ring_keras.horovod._import_hook import IMPORT_DIRECTORY


def run(code: str, *path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(path)} | environment
    return subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow
def test_modules_are_the_same_objects() -> None:
    ended = run(
        """
import horovod, sys
print(horovod.__version__)
import horovod.tensorflow.keras.callbacks as callbacks
import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig
from horovod.tensorflow.compression import Compressor
import ring_keras.horovod.tensorflow.keras
ours = ring_keras.horovod
assert horovod is ours and hvd is ours.tensorflow, (horovod, hvd)
assert callbacks is ours.tensorflow.keras.callbacks
assert hvd.keras is ours.tensorflow.keras
assert callbacks.__spec__.name == callbacks.__name__
assert ours.__spec__.name == "ring_keras.horovod"
""",
        IMPORT_DIRECTORY,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "0.28.1\n"
    assert ended.stderr.count("gives ring_keras.horovod in this job") == 1


@pytest.mark.slow
def test_one_rank_speaks_for_the_job() -> None:
    variables = {"RING_KERAS_RANK": "1", "RING_KERAS_SIZE": "2"}
    variables |= {"RING_KERAS_STORE_ADDRESS": "127.0.0.1:1"}
    variables |= {"RING_KERAS_TOKEN_FILE": "token"}

    ended = run("import horovod", IMPORT_DIRECTORY, **variables)

    assert ended.returncode == 0, ended.stderr
    assert "ring_keras" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "instead"),
    [("nothing", "it has horovod.tensorflow"), ("mxnet", "was retired in 2023. Move")],
)
def test_what_is_not_there_is_named(name: str, instead: str) -> None:
    ended = run(f"import horovod.{name}", IMPORT_DIRECTORY)

    assert ended.returncode == 1
    assert "ModuleNotFoundError: [RK430] ring_keras, which" in ended.stderr
    assert f"no horovod.{name}; {instead}" in ended.stderr.replace("Apache MXNet ", "")


@pytest.mark.slow
def test_horovod_itself_is_not_replaced(tmp_path: Path) -> None:
    """Neither does it run in a job of ours, where each rank would be alone."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("print('real')")

    ended = run("import horovod", IMPORT_DIRECTORY, str(tmp_path))

    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "ImportError: [RK711] ring_keras was asked to stand in for" in ended.stderr
    assert str(tmp_path) in ended.stderr


def test_without_the_option_horovod_is_not_there() -> None:
    assert "No module named 'horovod'" in run("import horovod").stderr
