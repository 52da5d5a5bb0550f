"""A page of the manual as its tests see it: what to write, to run, to check."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT_DIR = Path(__file__).resolve().parents[2]
DOCS_DIR = ROOT_DIR / "docs"

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
_SETUP = re.compile(r"^[ \t]*<!-- setup:(?P<info>.*)$")
_NOTE = re.compile(r"^[ \t]*<!--\s*(?P<text>.*?)\s*-->[ \t]*$")
_NOT_RUN = re.compile(r"not run:\s*(?P<reason>.*)")
_EXITS = re.compile(r"exits with (?P<code>\d+)")

# What a page's front matter may say of its code.
_SETTINGS = {"ranks", "timeout_s", "files"}


class PageError(Exception):
    """A page does not keep to the conventions; says where."""


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: Where it is.
        line: Of its first line of code, from 1.
        language: What follows the fence; "text" where nothing does.
        title: The file that it is to be written to, if any.
        code: Its text, without the indentation of its fence.
        not_run: Why it cannot be run, if so.
        exit_code: What its last command ends with.
    """

    page: Path
    line: int
    language: str
    title: str | None
    code: str
    not_run: str | None = None
    exit_code: int = 0

    @property
    def where(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    def commands(self) -> list[str]:
        """The commands of a console block."""
        commands: list[str] = []
        goes_on = False
        for line in self.code.splitlines():
            if goes_on:
                commands[-1] += "\n" + line
            elif line.startswith("$ "):
                commands.append(line.removeprefix("$ "))
            else:
                continue
            goes_on = line.endswith("\\")
        if not commands:
            raise PageError(
                f"{self.where}: a console block has commands, lines that begin with "
                "'$ '. For output alone use ```text."
            )
        return commands


@dataclass(frozen=True)
class DocPage:
    """A page with its blocks, in order.

    Attributes:
        path: Where it is.
        blocks: All of them, setups that readers do not see too.
        ranks: On how many its script runs; 1: without a launcher.
        timeout_s: Time for all that it runs.
        files: Folders and files of the repository that it finds in its directory.
    """

    path: Path
    blocks: list[Block] = field(default_factory=list)
    ranks: int = 2
    timeout_s: float = 300
    files: tuple[str, ...] = ()

    def runs(self) -> bool:
        """Whether it has anything to run."""
        return any(
            block.not_run is None and block.language in ("python", "console")
            for block in self.blocks
        )

    def script(self) -> str | None:
        """Its pieces of Python, each at the page's own line, if there are any."""
        lines: list[str] = []
        for block in self.blocks:
            if (
                block.language == "python"
                and block.title is None
                and block.not_run is None
            ):
                lines += [""] * (block.line - 1 - len(lines))
                lines += block.code.splitlines()
        return "\n".join(lines) + "\n" if lines else None


def name_of(page: Path) -> str:
    """How tests name it: its path in the repository, where it is there."""
    return str(page.relative_to(ROOT_DIR) if page.is_relative_to(ROOT_DIR) else page)


def manual_pages() -> list[Path]:
    """All pages whose code is checked: the manual and the README."""
    pages = [
        path
        for path in sorted(DOCS_DIR.rglob("*.md"))
        if path.relative_to(DOCS_DIR).parts[0] != "design"
    ]
    return [ROOT_DIR / "README.md", *pages]


def read_page(path: Path) -> DocPage:
    """Raises PageError where it does not keep to the conventions."""
    lines = path.read_text().splitlines()
    start, settings = _front_matter(path, lines)
    blocks = list(_blocks(path, lines, start))
    return DocPage(path, blocks, **settings)


def _front_matter(path: Path, lines: list[str]) -> tuple[int, dict[str, Any]]:
    if not lines or lines[0] != "---":
        return 0, {}
    end = lines.index("---", 1)
    settings = (yaml.safe_load("\n".join(lines[1:end])) or {}).get("code", {})
    if not set(settings) <= _SETTINGS:
        raise PageError(
            f"{name_of(path)}: `code:` in the front matter takes {sorted(_SETTINGS)}, "
            f"not {sorted(set(settings) - _SETTINGS)}."
        )
    if "files" in settings:
        settings["files"] = tuple(settings["files"])
    return end + 1, settings


def _blocks(path: Path, lines: list[str], start: int) -> Iterator[Block]:
    number = start
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        setup = _SETUP.match(lines[number])
        if fence is None and setup is None:
            number += 1
            continue
        first = number + 1
        end = _end_of(path, lines, first, fence)
        if fence is not None:
            indent, info = fence["indent"], fence["info"]
        else:
            assert setup is not None
            indent, info = "", setup["info"]
        language, title = _info(path, number, info)
        code = "\n".join(line.removeprefix(indent) for line in lines[first:end]) + "\n"
        note = _NOTE.match(lines[number - 1]) if number else None
        text = note["text"] if note else ""
        not_run = _NOT_RUN.fullmatch(text)
        exits = _EXITS.fullmatch(text)
        yield Block(
            path,
            first + 1,
            language,
            title,
            code,
            not_run["reason"] if not_run else None,
            int(exits["code"]) if exits else 0,
        )
        number = end + 1


def _end_of(
    path: Path, lines: list[str], first: int, fence: re.Match[str] | None
) -> int:
    for number in range(first, len(lines)):
        line = lines[number].strip()
        if fence is None and line == "-->":
            return number
        if fence is not None and line == fence["fence"][0] * max(
            len(line), len(fence["fence"])
        ):
            return number
    raise PageError(f"{name_of(path)}:{first}: this block has no end")


def _info(path: Path, number: int, info: str) -> tuple[str, str | None]:
    words = shlex.split(info)
    if not words:
        return "text", None
    title = None
    for word in words[1:]:
        if word.startswith("title="):
            title = word.removeprefix("title=")
        elif not word.startswith(("hl_lines=", "linenums=")):
            raise PageError(f"{name_of(path)}:{number + 1}: what is `{word}`?")
    return words[0], title
