"""Every block of code in the manual is at least well formed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.doc_pages import Block, DocPage, manual_pages, name_of, read_page

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

# Shown, and nothing more.
SHOWN = {
    *("text", "diff", "docker", "dockerfile", "hcl", "html", "ini", "c++", "cpp"),
    *("mermaid", "pytb", "xml"),
}
SHELL = {"bash", "sh", "shell"}


def check(block: Block) -> None:
    if block.language == "python":
        # At the page's own line, which the error then names.
        compile("\n" * (block.line - 1) + block.code, name_of(block.page), "exec")
    elif block.language == "console":
        check_shell("\n".join(block.commands()), block.where)
    elif block.language in SHELL:
        check_shell(block.code, block.where)
    elif block.language in ("yaml", "yml"):
        list(yaml.safe_load_all(block.code))
    elif block.language == "json":
        json.loads(block.code)
    elif block.language == "toml":
        tomllib.loads(block.code)
    else:
        assert block.language in SHOWN, f"{block.where}: what is ```{block.language}?"


def check_shell(code: str, where: str) -> None:
    checked = subprocess.run(
        ["bash", "-n", "-c", code], capture_output=True, text=True, timeout=30
    )
    assert checked.returncode == 0, f"{where}: {checked.stderr}"


@pytest.mark.parametrize("path", manual_pages(), ids=name_of)
def test_blocks_are_well_formed(path: Path) -> None:
    for block in read_page(path).blocks:
        check(block)


def page_with(tmp_path: Path, text: str) -> DocPage:
    page = tmp_path / "page.md"
    page.write_text(text)
    return read_page(page)


def test_a_block_that_does_not_compile_is_told(tmp_path: Path) -> None:
    page = page_with(tmp_path, "```python\nwith:\n```\n")
    with pytest.raises(SyntaxError):
        check(page.blocks[0])


def test_pieces_of_a_script_keep_the_lines_of_their_page(tmp_path: Path) -> None:
    page = page_with(
        tmp_path,
        "---\ncode: {ranks: 3}\n---\n"
        "<!-- setup:python\nimport os\n-->\n\n"
        "1. Item\n\n    ```python\n    a = 1\n    ```\n\n"
        '```python title="other.py"\nno = 1\n```\n'
        "<!-- not run: a reason -->\n```python\nno = 2\n```\n"
        "```python\nb = 2\n```\n",
    )
    assert page.ranks == 3
    assert page.script() == "\n" * 4 + "import os\n" + "\n" * 5 + "a = 1\n" + (
        "\n" * 10 + "b = 2\n"
    )


def test_commands_are_told_from_their_output(tmp_path: Path) -> None:
    page = page_with(
        tmp_path, "<!-- exits with 3 -->\n```console\n$ a \\\n    b\nout\n$ c\n```\n"
    )
    assert page.blocks[0].commands() == ["a \\\n    b", "c"]
    assert page.blocks[0].exit_code == 3
