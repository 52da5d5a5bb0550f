"""Links in Markdown lead somewhere, as a forge shows it, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.doc_links import broken_in_markdown, markdown_anchors, markdown_links
from support.doc_pages import DOCS_DIR, ROOT_DIR, name_of

PAGES = [
    *ROOT_DIR.glob("*.md"),
    *(
        page
        for folder in ("benchmarks", "deploy", "docs", "tests", "third_party")
        for page in (ROOT_DIR / folder).rglob("*.md")
    ),
]


@pytest.mark.parametrize("page", sorted(PAGES), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_in_markdown(page, ROOT_DIR) == []


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Two `words`\n\n## Two words\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[good](other.md#two-words-1) [gone](none.md) [lost](other.md#three)\n"
        '`[code](none.md)` <img src="none.png">\n```\n[code](none.md)\n```\n'
    )
    assert markdown_links(page.read_text())[:2] == ["other.md#two-words-1", "none.md"]
    assert broken_in_markdown(page, tmp_path) == [
        "none.md: no such file",
        "other.md#three: no such heading",
        "none.png: no such file",
    ]


def test_anchors_are_those_of_a_forge() -> None:
    assert "whats-there-yet" in markdown_anchors("## What's *there*, yet?\n")
    assert "named" in markdown_anchors('<a id="named"></a>\n')


def prose_lines(page: Path) -> Iterator[tuple[str, str, str]]:
    """Lines outside of code: where each is, its text, and that of the one before."""
    in_code = False
    before = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        if not in_code:
            yield f"{name_of(page)}:{number}", line, before
        before = "" if in_code else line


def test_pages_of_the_manual_are_plain_to_read() -> None:
    """A list or a table needs an empty line before it in Python's Markdown."""
    for page in DOCS_DIR.rglob("*.md"):
        for where, line, before in prose_lines(page):
            begins = line.startswith(("- ", "1. ", "* ", "| "))
            goes_on = before.startswith(("- ", "* ", "|", " ")) or before[:1].isdigit()
            assert not begins or not before.strip() or goes_on, (
                f"{where}: needs an empty line before it"
            )


def test_lists_in_lists_are_indented_by_fours() -> None:
    """Python's Markdown takes less for the outer list's next item."""
    for page in DOCS_DIR.rglob("*.md"):
        for where, line, _ in prose_lines(page):
            item = re.match(r"( +)(?:[-*]|\d+\.) ", line)
            assert item is None or len(item[1]) % 4 == 0, (
                f"{where}: needs 4 spaces for each level"
            )
