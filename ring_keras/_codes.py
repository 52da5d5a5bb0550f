"""The codes of errors and warnings: `[RK302]` at the start of what they say.

docs/troubleshooting.md has an entry for each; it comes with the package, under the name
troubleshooting.md. A code is written where its error is raised, in C++ in
tf_ops/common/error_code.h, and is never given to another cause.
"""

import re
from pathlib import Path

__all__ = ["CodedMixin", "codes_in", "codes_of_class", "explain"]

_CODE = re.compile(r"\[(RK[1-9]\d\d)\]")
_PAGE = Path(__file__).with_name("troubleshooting.md")
_ENTRY = re.compile(r"^### (RK\d{3})\n.*?(?=^##+ |\Z)", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r"^\*\*(.*)\*\*$", re.MULTILINE)


class CodedMixin:
    """Gives an exception the code that its text begins with."""

    @property
    def code(self) -> str | None:
        """Such as `RK302`, of docs/troubleshooting.md; None if it has none."""
        return next(iter(codes_in(str(self))), None)


def codes_in(text: str) -> list[str]:
    """The codes that a text names, in its order, each once."""
    return list(dict.fromkeys(_CODE.findall(text)))


def explain(code: str) -> str | None:
    """What the page says about a code, also without its "RK"; None: there is none."""
    wanted = f"RK{code.upper().strip('[]').removeprefix('RK')}"
    for entry in _ENTRY.finditer(_PAGE.read_text(encoding="utf-8")):
        if entry[1] == wanted:
            return entry[0].rstrip() + "\n"
    return None


def codes_of_class(name: str) -> dict[str, str]:
    """The codes that errors of a class have, each with what the page calls it."""
    text = re.compile(rf"^{re.escape(name)}: \[RK", re.MULTILINE)
    titles = {}
    for entry in _ENTRY.finditer(_PAGE.read_text(encoding="utf-8")):
        if text.search(entry[0]):
            titles[entry[1]] = _TITLE.findall(entry[0])[0]
    return titles
