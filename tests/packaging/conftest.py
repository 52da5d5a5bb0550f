"""A wheel of the source tree, and environments to install it into."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT_DIR = Path(__file__).resolve().parent.parent.parent

RunCommand = Callable[..., str]


@pytest.fixture(scope="session")
def run_command() -> RunCommand:
    """`run_command(*arguments, env={}, timeout_s=120)` gives both outputs.

    Fails the test, showing them, if the command does not succeed.
    """

    def run(
        *arguments: str | Path,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 120,
    ) -> str:
        command = [str(argument) for argument in arguments]
        ended = subprocess.run(
            command,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        if ended.returncode != 0:
            pytest.fail(f"{command} exited with {ended.returncode}:\n{ended.stdout}")
        return ended.stdout

    return run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, run_command: RunCommand) -> Path:
    """A wheel, compiled in the source tree's build folder: quick if that is."""
    work_dir = tmp_path_factory.mktemp("wheel")
    # Python files of a former build must not get in from the tree's build/.
    config = work_dir / "setuptools.cfg"
    config.write_text(f"[build]\nbuild_base = {work_dir}/build\n")
    run_command(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", work_dir, ROOT_DIR),
        # As `make wheel` has it.
        env={
            "DIST_EXTRA_CONFIG": str(config),
            "CMAKE_ARGS": f"{os.environ.get('CMAKE_ARGS', '')} "
            "-DRING_KERAS_BUILD_JAX=ON",
        },
        timeout_s=900,
    )
    (path,) = work_dir.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def make_environment(run_command: RunCommand) -> Callable[[Path], Path]:
    """`make_environment(directory)` makes one and gives its `bin/`.

    It sees the packages of the environment that runs the tests, TensorFlow
    above all, but no ring_keras.
    """

    def make(directory: Path) -> Path:
        run_command(sys.executable, "-m", "venv", directory)
        site_dir = next(directory.glob("lib/python*/site-packages"))
        # The .pth files in there, an editable install's, are not read again.
        (site_dir / "outer.pth").write_text(sysconfig.get_path("purelib"))
        return directory / "bin"

    return make
