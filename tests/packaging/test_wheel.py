"""The wheel holds what it must, and works where it is installed."""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from build_support.board import BoardError, find_npm
from ring_keras._version import __version__

# Compiles everything if the tree was never built.
pytestmark = pytest.mark.timeout(1200)

RunCommand = Callable[..., str]

ROOT_DIR = Path(__file__).resolve().parent.parent.parent

MANY = re.MULTILINE | re.DOTALL

# Of TensorBoard's plugin.
PAGE = {"index.js", "index.css", "licenses.txt"}

TRAIN_ON_ONE_RANK = """
import pathlib, sys
import numpy as np
import ring_keras as ring

assert pathlib.Path(ring.__file__).is_relative_to(sys.prefix), ring.__file__
ring.init()
reduced = ring.allreduce(np.array([1.0, 2.0], np.float32), name="x")
assert reduced.numpy().tolist() == [1.0, 2.0], reduced
ring.shutdown()
print("works on", sys.prefix)
"""


@pytest.mark.parametrize(
    "pattern",
    [
        r"ring_keras/__init__\.pyi",
        r"ring_keras/_build_info\.json",
        r"ring_keras/_native\.pyi",
        r"ring_keras/_native\.cpython-.*\.so",
        r"ring_keras/launch/cli\.py",
        r"ring_keras/libring_keras_core\.so",
        r"ring_keras/libring_keras_jax\.so",
        r"ring_keras/libring_keras_tf_\d+_\d+\.so",
        r"ring_keras/py\.typed",
        r"ring_keras-.*/licenses/LICENSE",
        r"ring_keras-.*\.data/data/share/man/man1/ringrun\.1",
    ],
)
def test_holds_once(wheel: Path, pattern: str) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len([name for name in names if re.fullmatch(pattern, name)]) == 1, names


def test_holds_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "ring_keras",
        f"ring_keras-{__version__}.data",
        f"ring_keras-{__version__}.dist-info",
    }
    static = "ring_keras/tensorboard/static/"
    bundle = {n.removeprefix(static) for n in names if n.startswith(static)}
    own = [n for n in names if n.startswith("ring_keras/") and not n.startswith(static)]
    kinds = {Path(name).suffix for name in own}
    assert kinds == {".json", ".md", ".py", ".pyi", ".so", ".typed"}
    assert bundle <= PAGE


def test_holds_the_page_for_tensorboard(wheel: Path) -> None:
    try:
        find_npm()
    except BoardError as error:
        pytest.skip(f"the wheel is built without its page: {error}")
    archive = zipfile.ZipFile(wheel)
    static = "ring_keras/tensorboard/static/"
    assert {f"{static}{name}" for name in PAGE} <= {*archive.namelist()}
    licenses = archive.read(f"{static}licenses.txt").decode()
    # What is bundled, and what is in that.
    assert re.search(r"^plotly\.js-cartesian-dist-min \d.*^preact \d", licenses, MANY)
    assert re.search(r"^plotly\.js \d.*^@plotly/d3 \d.*^d3-format \d", licenses, MANY)


@pytest.mark.slow  # Half a minute of pip.
def test_installs_and_works(
    wheel: Path,
    tmp_path: Path,
    make_environment: Callable[[Path], Path],
    run_command: RunCommand,
) -> None:
    bin_dir = make_environment(tmp_path / "venv")
    run_command(
        *(bin_dir / "python", "-m", "pip", "install", "--no-deps", "--no-index", wheel),
        timeout_s=300,
    )
    for program in ("ringrun", "ring"):
        assert __version__ in run_command(bin_dir / program, "--version")
    assert (tmp_path / "venv" / "share" / "man" / "man1" / "ringrun.1").is_file()
    printed = run_command(bin_dir / "python", "-c", TRAIN_ON_ONE_RANK, cwd=tmp_path)
    assert f"works on {tmp_path / 'venv'}" in printed


@pytest.mark.slow  # A minute of pip, which fetches JAX.
@pytest.mark.timeout(900)
def test_trains_on_jax_without_a_compiler(
    wheel: Path, tmp_path: Path, run_command: RunCommand
) -> None:
    """And without TensorFlow, in an environment that has nothing else."""
    if sys.version_info < (3, 11):
        pytest.skip("JAX 0.10 needs Python 3.11")
    run_command(sys.executable, "-m", "venv", tmp_path / "venv")
    bin_dir = tmp_path / "venv" / "bin"
    run_command(
        *(bin_dir / "python", "-m", "pip", "install", "--only-binary", ":all:"),
        f"{wheel}[jax]",
        timeout_s=600,
    )
    # Neither a compiler nor this environment's packages.
    env = {"KERAS_BACKEND": "jax", "PATH": str(bin_dir), "PYTHONPATH": ""}
    # Where the clone's own package does not lie.
    check = (bin_dir / "ringrun", "--check-build")
    checked = run_command(*check, env=env, cwd=tmp_path)
    assert "built for JAX: libring_keras_jax.so" in checked
    script = ROOT_DIR / "build_support" / "release" / "train_on_two.py"

    printed = run_command(
        *(bin_dir / "ringrun", "-np", "2", bin_dir / "python", script),
        env=env,
        cwd=tmp_path,
    )

    trained = "on jax: trained, and all ranks have the same weights"
    assert printed.count(trained) == 2, printed


@pytest.mark.slow  # Ten seconds of pip.
def test_a_script_beside_the_clone_finds_an_editable_install(
    tmp_path: Path,
    make_environment: Callable[[Path], Path],
    run_command: RunCommand,
) -> None:
    """There the clone's own folder looks like a package of that name, and is none."""
    clone = tmp_path / "ring_keras"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT_DIR / "ring_keras", clone / "ring_keras", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT_DIR / name, clone)
    # Where the libraries are is not what this is about: none is compiled.
    (clone / "setup.py").write_text("import setuptools\nsetuptools.setup()\n")
    bin_dir = make_environment(tmp_path / "venv")
    pip = (bin_dir / "python", "-m", "pip")
    # An old one that hides the outer environment's.
    run_command(*pip, "uninstall", "--yes", "setuptools")
    run_command(
        *(*pip, "install", "--no-deps", "--no-index"),
        *("--no-build-isolation", "--editable", clone),
        timeout_s=300,
    )
    script = tmp_path / "train.py"
    script.write_text("import ring_keras\nprint(ring_keras.__file__)\n")

    # A folder on it may hide what is wrong.
    printed = run_command(bin_dir / "python", script, env={"PYTHONPATH": ""})

    assert printed.strip() == str(clone / "ring_keras" / "__init__.py")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sdist_builds_in_isolation(
    tmp_path: Path,
    make_environment: Callable[[Path], Path],
    run_command: RunCommand,
) -> None:
    """As a user installs it: pip fetches the tools, finds our TensorFlow."""
    bin_dir = make_environment(tmp_path / "venv")
    make_sdist = (
        "import setuptools.build_meta as backend, sys; "
        "print(backend.build_sdist(sys.argv[1]))"
    )
    run_command(sys.executable, "-c", make_sdist, tmp_path, cwd=ROOT_DIR)
    (sdist,) = tmp_path.glob("*.tar.gz")

    run_command(
        *(bin_dir / "python", "-m", "pip", "install", "-v", "--no-deps", sdist),
        timeout_s=1500,
    )

    printed = run_command(bin_dir / "python", "-c", TRAIN_ON_ONE_RANK, cwd=tmp_path)
    assert f"works on {tmp_path / 'venv'}" in printed
