"""An op library that does not fit TensorFlow says so, and what mends it.

Each case is a copy of the package with real files changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import ring_keras

# TensorFlow first or last, as scripts do.
SCRIPTS = (
    "import tensorflow, ring_keras; ring_keras.init()",
    pytest.param(
        "import ring_keras, tensorflow; ring_keras.init()", marks=pytest.mark.slow
    ),
)


@pytest.fixture(params=SCRIPTS)
def script(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def package_dir(tmp_path: Path) -> Path:
    copy = tmp_path / "ring_keras"
    shutil.copytree(Path(ring_keras.__file__).parent, copy)
    return copy


def load_ops(package_dir: Path, script: str = SCRIPTS[0]) -> str:
    """What a script prints that uses the copy, and fails."""
    ended = run(package_dir, script)
    assert ended.returncode == 1, ended.stderr
    return ended.stderr


def run(package_dir: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A script that uses the copy."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(package_dir.parent)},
        cwd=package_dir.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )


def op_library(package_dir: Path) -> Path:
    (path,) = package_dir.glob("libring_keras_tf_*.so")
    return path


@pytest.mark.slow
def test_other_minor_version_names_both_and_the_remedy(
    package_dir: Path, script: str
) -> None:
    op_library(package_dir).rename(package_dir / "libring_keras_tf_2_5.so")
    info_file = package_dir / "_build_info.json"
    info = json.loads(info_file.read_text())
    info_file.write_text(json.dumps({**info, "tensorflow_versions": "2.5.1"}))

    printed = load_ops(package_dir, script)

    assert "ImportError: [RK706] ring_keras" in printed
    assert "built for TensorFlow 2.5.1" in printed
    assert f"TensorFlow {tf.__version__} is installed" in printed
    # Of the distribution that is there, and what needs a compiler last.
    assert re.search(
        r'pip install "tensorflow[\w-]*==2\.5\.1"\. Or, .*rebuild it: ', printed
    )


def test_tensorboard_shows_the_page_where_the_ops_do_not_fit(package_dir: Path) -> None:
    pytest.importorskip("tensorboard")
    op_library(package_dir).unlink()
    for native in package_dir.glob("_native*.so"):
        native.unlink()
    # Another TensorFlow than ours, as far as anybody looks; and none.
    other = "types.ModuleType('tensorflow'); tensorflow.__version__ = '2.5.0'"
    page = "from ring_keras.tensorboard import plugin; print(plugin.__file__)"
    for tensorflow in (other, "None"):
        script = f"import sys, types; tensorflow = {tensorflow}; "
        script += f"sys.modules['tensorflow'] = tensorflow; {page}"
        ended = run(package_dir, script)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith(str(package_dir))


@pytest.mark.slow
def test_undefined_symbol_is_explained(package_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "stale.cc"
    source.write_text(
        "void SymbolOfAnotherTensorFlow();\n"
        "namespace { int call = (SymbolOfAnotherTensorFlow(), 0); }\n"
    )
    library = op_library(package_dir)
    library.unlink()
    compiler = os.environ.get("CXX", "c++")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60
    )

    printed = load_ops(package_dir)

    assert "ImportError: [RK706] ring_keras" in printed
    assert "SymbolOfAnotherTensorFlow" in printed
    assert "rebuild it: " in printed


@pytest.mark.slow
def test_package_that_was_never_built_says_how(package_dir: Path) -> None:
    op_library(package_dir).unlink()
    (package_dir / "_build_info.json").unlink()

    printed = load_ops(package_dir)

    assert "has no C++ libraries. Build them: " in printed
