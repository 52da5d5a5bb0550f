"""Every page of the manual, followed to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.doc_pages import DocPage, manual_pages, name_of, read_page
from support.doc_runs import Reader
from support.processes import wait_until_dead


def pages_that_run() -> list[DocPage]:
    return [page for page in map(read_page, manual_pages()) if page.runs()]


@pytest.mark.docs
@pytest.mark.timeout(600)  # A page has its own.
@pytest.mark.parametrize("page", pages_that_run(), ids=lambda page: name_of(page.path))
def test_page(page: DocPage, tmp_path: Path) -> None:
    Reader(page, tmp_path).follow()


def follow(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    directory = tmp_path / "reader"
    directory.mkdir()
    Reader(read_page(path), directory).follow()


def test_files_commands_and_the_script_come_in_order(tmp_path: Path) -> None:
    follow(
        tmp_path,
        "---\ncode: {ranks: 1}\n---\n"
        '```text title="a/words.txt"\none\n```\n'
        "```console\n$ test -e a/words.txt\n$ echo two >>a/words.txt\ntwo\n```\n"
        "<!-- exits with 3 -->\n```console\n$ exit 3\n```\n"
        "```python\ntext = open('a/words.txt').read()\n```\n"
        "```python\nassert text == 'one\\ntwo\\n'\n```\n",
    )


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("```console\n$ true\n$ false\n```\n", "page.md:5: false"),
        ("```python\nx = 1\n1 / 0\n```\n", "line 6, in <module>"),
    ],
)
def test_what_fails_is_told(tmp_path: Path, block: str, told: str) -> None:
    with pytest.raises(AssertionError) as failed:
        follow(tmp_path, "---\ncode: {ranks: 1}\n---\n" + block)
    assert told in str(failed.value)
    assert "exit code 1, not 0" in str(failed.value)


def test_a_page_ends_in_time_with_all_that_it_started(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not within the 1 s"):
        follow(
            tmp_path,
            "---\ncode: {timeout_s: 1}\n---\n"
            "```console\n$ sleep 1000 & echo $! >../child; wait\n```\n",
        )
    wait_until_dead([int((tmp_path / "child").read_text())])
