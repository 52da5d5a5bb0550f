"""The promise of the manual: from one process to two by a few lines, and which."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
from support.doc_pages import DOCS_DIR, read_page

PAGE = read_page(DOCS_DIR / "tutorials" / "one_to_two.md")
FILES = {block.title: block.code for block in PAGE.blocks if block.title}


def unified_diff() -> list[str]:
    return [
        line.rstrip()  # As editors leave it on the page.
        for line in difflib.unified_diff(
            FILES["one.py"].splitlines(),
            FILES["two.py"].splitlines(),
            "one.py",
            "two.py",
            lineterm="",
        )
    ]


def test_four_lines_change() -> None:
    body = unified_diff()[2:]
    added = [line for line in body if line.startswith("+")]
    removed = [line for line in body if line.startswith("-")]
    assert len(added) == 4
    assert len(removed) == 2


def test_the_page_shows_that_diff() -> None:
    (shown,) = [block.code for block in PAGE.blocks if block.language == "diff"]
    assert shown.splitlines() == unified_diff()


def test_both_are_run_when_the_page_is_followed() -> None:
    commands = [
        command
        for block in PAGE.blocks
        if block.language == "console" and block.not_run is None
        for command in block.commands()
    ]
    assert "python one.py" in commands
    assert "ringrun -np 2 python two.py" in commands


@pytest.mark.parametrize(
    "path",
    [
        DOCS_DIR.parent / "README.md",
        DOCS_DIR / "index.md",
        DOCS_DIR / "comparison.md",
        DOCS_DIR / "start" / "first_job.md",
    ],
    ids=lambda path: path.name,
)
def test_five_lines_are_those_that_name_the_package(path: Path) -> None:
    script = next(
        block.code
        for block in read_page(path).blocks
        if block.language == "python" and "import ring_keras as ring" in block.code
    )
    numbered = re.findall(r"^.*\bring\b.*# (\d)\b.*$", script, re.MULTILINE)
    assert numbered == list("12345")
    assert len(re.findall(r"^.*\bring\b[^#\n]*$", script, re.MULTILINE)) == 0
    assert re.search(r"\b[Ff]ive\b.{0,2} lines|\*\*5\*\*", path.read_text())
