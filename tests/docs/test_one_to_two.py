"""The promise of a tutorial: from one process to two by three lines."""

from __future__ import annotations

import difflib

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


def test_at_most_three_lines_change() -> None:
    body = unified_diff()[2:]
    added = [line for line in body if line.startswith("+")]
    removed = [line for line in body if line.startswith("-")]
    assert 0 < len(added) <= 3
    assert len(removed) <= len(added)


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
