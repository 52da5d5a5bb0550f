"""Where libraries are missing, ringrun tells the command that builds them."""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ring_keras


@pytest.fixture
def unbuilt(tmp_path):
    """A directory with a copy of the package that has no working library."""
    copy = tmp_path / "ring_keras"
    shutil.copytree(
        Path(ring_keras.__file__).parent,
        copy,
        ignore=shutil.ignore_patterns("*.so", "_build_info.json", "__pycache__"),
    )
    # Empty, not absent: an editable install would find its own one instead.
    (copy / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}").touch()
    return tmp_path


def python(directory, *arguments):
    """Runs Python where the copy is what it imports first."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rebuild_command(directory):
    script = (
        "from ring_keras._libraries import rebuild_command; print(rebuild_command())"
    )
    return python(directory, "-c", script).stdout.strip()


def fix_of(report, check):
    """The command that the report gives with a failure of that check."""
    lines = iter(report.splitlines())
    assert any(line.startswith(f"  [NO] {check}") for line in lines), report
    return next(line for line in lines if "fix: " in line).split("fix: ")[1]


@pytest.mark.slow
def test_check_build_of_what_was_not_built(unbuilt):
    finished = python(unbuilt, "-m", "ring_keras.launch", "--check-build")

    assert finished.returncode == 1, finished.stderr
    for part in ("C++ core", "operations"):
        assert fix_of(finished.stdout, part) == rebuild_command(unbuilt)


def test_check_build_for_another_tensorflow(unbuilt):
    info = {
        "version": ring_keras.__version__,
        "tensorflow_versions": "2.0.1",
        "cxx11_abi": 1,
        "compiler": "GNU 12.2.0",
        "python_version": "3.10.0",
    }
    (unbuilt / "ring_keras" / "_build_info.json").write_text(json.dumps(info))

    finished = python(unbuilt, "-m", "ring_keras.launch", "--check-build")

    assert finished.returncode == 1, finished.stderr
    text = " ".join(finished.stdout.split())
    assert "built for TensorFlow 2.0.1: there is no libring_keras_tf_" in text
    fitting, _, rebuild = fix_of(finished.stdout, "operations").partition("; or build")
    assert fitting.endswith('==2.0.1"')
    assert rebuild == f" it: {rebuild_command(unbuilt)}"


def test_a_job_without_libraries(unbuilt):
    finished = python(unbuilt, "-m", "ring_keras.launch", "-np", "1", "true")

    assert finished.returncode == 1
    assert finished.stderr.startswith("ringrun: [RK701] ring_keras is not built (")
    assert finished.stderr.endswith(f"; build it: {rebuild_command(unbuilt)}\n")
