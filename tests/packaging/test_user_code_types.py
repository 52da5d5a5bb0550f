"""Type checkers find the mistakes in users' code, and none where there is none."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Minutes where all of TensorFlow and Keras is read for the first time.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT_DIR = Path(__file__).resolve().parents[2]
USER_CODE = Path(__file__).with_name("user_code")


def mypy_errors(file: str, tmp_path: Path) -> dict[int, str]:
    """By line; as a user has it who is strict, and whose TensorFlow has no types."""
    (tmp_path / file).write_text((USER_CODE / file).read_text())
    ended = run(
        tmp_path,
        *("mypy", "--strict", "--ignore-missing-imports", "--no-incremental"),
        *("--python-version", "3.10", "--config-file=", "--no-error-summary"),
        file,
    )
    found = re.findall(r"^.*?:(\d+): error: (.*)$", ended.stdout, re.MULTILINE)
    assert found or ended.returncode == 0, ended.stdout + ended.stderr
    return {int(line): text for line, text in found}


def pyright_errors(file: str, tmp_path: Path) -> dict[int, str]:
    """By line; basedpyright is pyright, with its Node in its wheel."""
    (tmp_path / file).write_text((USER_CODE / file).read_text())
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "include": [file],
                "extraPaths": [str(ROOT_DIR)],
                "pythonVersion": "3.10",
                "typeCheckingMode": "standard",
            }
        )
    )
    ended = run(
        tmp_path,
        *("basedpyright", "--outputjson", "--project", tmp_path),
        *("--pythonpath", sys.executable),
    )
    report = json.loads(ended.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, ended.stdout
    return {
        found["range"]["start"]["line"] + 1: found["message"]
        for found in report["generalDiagnostics"]
        if found["severity"] == "error"
    }


def run(
    directory: Path, module: str, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """Where this package is an installed one, and not the user's own code.

    mypy judges what it finds in its directory, and not what is on Python's path. It
    does not find a package there that was installed in setuptools' editable mode.
    """
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"there is no {module}; the extra `dev` has it")
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT_DIR)},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )


@pytest.mark.parametrize("errors_of", [mypy_errors, pyright_errors])
def test_right_code_has_no_error(
    errors_of: Callable[[str, Path], dict[int, str]], tmp_path: Path
) -> None:
    assert errors_of("right.py", tmp_path) == {}


@pytest.mark.parametrize("errors_of", [mypy_errors, pyright_errors])
def test_each_mistake_is_found_and_nothing_else(
    errors_of: Callable[[str, Path], dict[int, str]], tmp_path: Path
) -> None:
    lines = (USER_CODE / "wrong.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "# wrong: " in line}

    assert set(errors_of("wrong.py", tmp_path)) == wrong


def test_right_code_has_every_public_name() -> None:
    stub = (ROOT_DIR / "ring_keras" / "__init__.pyi").read_text()
    public = re.findall(r" as (\w+)$", stub, re.MULTILINE)
    used = set(re.findall(r"\bring\.(\w+)", (USER_CODE / "right.py").read_text()))

    assert len(public) > 50
    assert set(public) <= used
