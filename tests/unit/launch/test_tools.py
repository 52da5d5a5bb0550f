"""`ring`, and the tools that it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ring_keras.launch import cli
from ring_keras.launch.tools import _TOOLS, main


@pytest.mark.parametrize("tool", _TOOLS)
def test_a_tool_gets_its_own_options(capsys, tool: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([tool, "--help"])
    # As it has to be started, whoever starts it; but for ringrun's own.
    name = "ringrun" if _TOOLS[tool].module == cli.__name__ else f"ring {tool}"
    assert name in capsys.readouterr().out.splitlines()[0]


def test_a_tools_exit_code_is_rings(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "ring_keras", "analyze", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 1
    assert "expected files named rank*.trace" in finished.stderr


def test_errors_are_explained_by_any_separator(capsys) -> None:
    assert main(["explain", "RK302,RK201", "rk101"]) == 0
    headings = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("###")
    ]
    assert headings == ["### RK302", "### RK201", "### RK101"]


def test_an_errors_class_has_codes(capsys) -> None:
    assert main(["explain", "RankMismatchError"]) == 0
    shown = capsys.readouterr().out
    assert "  RK302  The shapes of a tensor differ.\n" in shown
    assert "RK201" not in shown
    assert main(["explain", "NoSuchError"]) == 2


def test_ringruns_help_ends_with_the_tools(capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    last = capsys.readouterr().out.splitlines()[-len(_TOOLS) :]
    assert [line.split()[0] for line in last] == list(_TOOLS)
    assert all(len(line) <= 80 for line in last)


def test_without_a_tool_it_says_which_there_are(capsys) -> None:
    assert main([]) == 2
    assert "  benchmark " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "meant"), [("explan", "explain"), ("benchmarks", "benchmark")]
)
def test_a_misspelt_tool(capsys, word: str, meant: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([word])
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


def test_an_unknown_tool(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["checks"])
    said = capsys.readouterr().err
    assert "there is no tool checks among verify, benchmark" in said
    assert "mean" not in said


def test_verify_says_what_is_missing_before_it_imports_tensorflow() -> None:
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            "import contextlib, sys; from ring_keras.launch.tools import main\n"
            "with contextlib.suppress(SystemExit): main(['verify'])\n"
            "sys.exit('tensorflow' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0
    assert "which script?" in finished.stderr
