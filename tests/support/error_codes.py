"""The codes of errors, in the sources and on their page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT_DIR = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT_DIR / "docs" / "troubleshooting.md"
PACKAGE_DIR = ROOT_DIR / "ring_keras"
CORE_DIR = ROOT_DIR / "tf_ops"

_CODE = re.compile(r"\[(RK\d{3})\] ?")
_PYTHON_CODE = re.compile(r'"(RK\d{3})"|\[(RK\d{3})\]')
_NUMBER = re.compile(r"^\s*(k\w+) = (\d{3}),", re.MULTILINE)
_ENTRY = re.compile(r"^### (\S+)\n(.*?)(?=^##+ |\Z)", re.MULTILINE | re.DOTALL)
_MESSAGES = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PLACE = re.compile(r"<[^<>]+>")
_USE = re.compile(r"ErrorCode::(k\w+)\b")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
# Stands for what a program puts in.
_LEAST_PART = 8
SOMETHING = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True)
class Message:
    """A text with a code in the sources, with `SOMETHING` for what is put in."""

    code: str
    text: str
    where: str


@dataclass
class Entry:
    """What the page says about one code."""

    code: str
    messages: list[str] = field(default_factory=list)
    text: str = ""

    def matches(self, message: str) -> bool:
        """Whether the page shows such a message."""
        said = _CODE.split(" ".join(message.split()), maxsplit=1)[-1]
        return any(_pattern(shown).search(said) for shown in self.messages)

    def lacks(self, message: Message) -> list[str]:
        """The parts of a text of the sources that the page does not show."""
        parts = [" ".join(part.split()) for part in message.text.split(SOMETHING)]
        shown = "\n".join(self.messages)
        return [
            part
            for part in parts
            if len(part) >= _LEAST_PART and part.strip(".,:;") not in shown
        ]


def entries() -> list[Entry]:
    """Those of the page, in its order."""
    found = []
    for code, text in _ENTRY.findall(PAGE.read_text()):
        shown = [
            " ".join(one.split())
            for block in _MESSAGES.findall(text)
            for one in re.split(r"\n\s*\n", block)
            if one.strip()
        ]
        found.append(Entry(code, shown, text))
    return found


def _pattern(shown: str) -> re.Pattern[str]:
    text = _CODE.split(shown, maxsplit=1)[-1]
    parts = [re.escape(part) for part in _PLACE.split(text.rstrip("."))]
    return re.compile(".+?".join(parts))


def core_codes() -> dict[str, str]:
    """The names of C++'s codes."""
    text = (CORE_DIR / "common" / "error_code.h").read_text()
    return {name: f"RK{number}" for name, number in _NUMBER.findall(text)}


def core_uses() -> set[str]:
    """The codes that C++ gives to something."""
    codes = core_codes()
    return {
        codes[name]
        for path in _core_files()
        for name in _USE.findall(path.read_text())
        if name in codes
    }


def core_messages() -> Iterator[Message]:
    """What C++ says with a code of its own, where that is written beside it."""
    codes = core_codes()
    for path in _core_files():
        text = path.read_text()
        for use in _USE.finditer(text):
            said = _said_after(text, use.end())
            if use[1] in codes and max(map(len, said.split(SOMETHING))) >= 8:
                where = f"{path.relative_to(ROOT_DIR)}: {use[1]}"
                yield Message(codes[use[1]], said, where)


def package_codes() -> set[str]:
    """The codes that Python gives to something, and C++ to torch's errors."""
    return {
        code
        for path in [*PACKAGE_DIR.rglob("*.py"), *(CORE_DIR / "torch").glob("*.cc")]
        if path.name != "_codes.py"
        for found in _PYTHON_CODE.findall(path.read_text())
        for code in found
        if code
    }


def _core_files() -> Iterator[Path]:
    for path in sorted(CORE_DIR.rglob("*")):
        if path.suffix in {".cc", ".h"} and path.name != "error_code.h":
            yield path


def _said_after(text: str, start: int) -> str:
    """The strings that follow in the same call."""
    depth, end = 1, start
    while end < len(text) and depth > 0 and text[end] != ";":
        string = _STRING.match(text, end)
        if string is not None:
            end = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    said, place = "", start
    for string in _STRING.finditer(text, start, end):
        between = text[place : string.start()].replace("StrCat", "")
        if re.search(r"[^\s,()]", between):
            said += SOMETHING
        said += string[1].replace('\\"', '"')
        place = string.end()
    if re.search(r"\w", text[place:end]):
        said += SOMETHING
    return said


def package_messages() -> Iterator[Message]:
    """What Python says with a code."""
    for path in sorted(PACKAGE_DIR.rglob("*.py")):
        source = path.read_text()
        if _CODE.search(source) is None:
            continue
        tree = ast.parse(source)
        documents = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        inner = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        for node in ast.walk(tree):
            if id(node) in documents | inner:
                continue
            text = _literal(node)
            found = _CODE.search(text)
            if found is not None and path.name != "_codes.py":
                where = f"{path.relative_to(ROOT_DIR)}:{node.lineno}"
                yield Message(found[1], text[found.end() :], where)


def _literal(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sdr]", SOMETHING, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) or SOMETHING for part in node.values)
    return ""
