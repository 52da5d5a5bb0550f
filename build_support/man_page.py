"""Writes the man page ringrun(1), made of the parser that reads its options.

By hand, rather than by a package for that: a build must need nothing more, the page
must have the same bytes each time, and say what the parser does not: exit codes, say.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import setuptools  # noqa: F401  It brings distutils, which Python 3.12 has not.

from distutils.command.install_data import install_data  # isort: skip

ROOT_DIR = Path(__file__).resolve().parent.parent
# Relative to the project's folder, as setuptools wants it.
PAGE = "build/man/ringrun.1"
DATA_FILES = [("share/man/man1", [PAGE])]

_NAME = "ringrun \\- run a command as the ranks of a distributed training"

_EXIT_STATUS = (
    ("0", "every rank ended well"),
    ("1", "the job could not be started, or `--check-build` found a failure"),
    ("2", "the options make no sense"),
    ("127", "there is no such command"),
    ("128 + N", "signal N ended ringrun, or the first rank that failed"),
    ("other", "the exit code of the first rank that failed"),
)
_EXAMPLES = (
    ("Two ranks on this machine:", "ringrun -np 2 python train.py"),
    ("Four on each of two hosts:", "ringrun -H node0:4,node1:4 python train.py"),
    (
        "Are these hosts fit for that, and how fast is the network between them?",
        "ringrun -H node0:4,node1:4 --check-build",
    ),
    (
        "Complete options and commands in bash:",
        'eval "$(ringrun --print-completion bash)"',
    ),
)
_ENVIRONMENT = (
    "Ranks inherit what ringrun has. `ringrun --print-env` lists the variables that "
    "ring_keras reads, which begin with RING_KERAS_."
)
_SEE_ALSO = "ssh(1), python(1)"


class InstallManPage(install_data):
    """Writes the page before setuptools copies it to share/man."""

    def run(self) -> None:
        write_man_page()
        super().run()


def write_man_page() -> None:
    """Writes it to where the build looks for it."""
    path = ROOT_DIR / PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(man_page())


def man_page() -> str:
    """The page, in man(7)."""
    parser, version = _parser()
    parts = [
        f'.TH RINGRUN 1 "{_date()}" "ring_keras {version}" "User Commands"',
        ".SH NAME",
        _NAME,
        ".SH SYNOPSIS",
        *_synopsis(parser),
        ".SH DESCRIPTION",
        *_paragraphs(parser.description or ""),
        *_paragraphs(parser.epilog or ""),
        ".SH OPTIONS",
    ]
    for group in parser._action_groups:
        options = [
            action
            for action in group._group_actions
            if action.option_strings and action.help != argparse.SUPPRESS
        ]
        if not options:
            continue
        if group is not parser._optionals:
            parts += [f".SS {_escaped((group.title or '').capitalize())}"]
            parts += _paragraphs(group.description or "")
        for action in options:
            parts += _option(action)
    parts += [".SH EXIT STATUS", *_table(_EXIT_STATUS)]
    parts += [".SH ENVIRONMENT", _escaped(_ENVIRONMENT), ".SH EXAMPLES"]
    for title, command in _EXAMPLES:
        parts += [".PP", _escaped(title), ".PP", ".nf", ".RS", _escaped(command)]
        parts += [".RE", ".fi"]
    parts += [".SH SEE ALSO", _escaped(_SEE_ALSO)]
    text = "\n".join(parts) + "\n"
    # A heading begins a paragraph by itself.
    return re.sub(r"^(\.S[HS] .*\n)\.PP\n", r"\1", text, flags=re.MULTILINE)


def _date() -> str:
    """Of the build, or the one that builds which must not differ agree on."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    moment = time.gmtime(None if seconds is None else int(seconds))
    return time.strftime("%Y-%m-%d", moment)


def _parser() -> tuple[argparse.ArgumentParser, str]:
    """ringrun's, and the version, without what the package's face needs."""
    if "ring_keras" not in sys.modules:
        face = types.ModuleType("ring_keras")
        face.__path__ = [str(ROOT_DIR / "ring_keras")]
        sys.modules["ring_keras"] = face
    from ring_keras._version import __version__
    from ring_keras.launch.cli import make_parser

    return make_parser(), __version__


def _synopsis(parser: argparse.ArgumentParser) -> Iterator[str]:
    for number, line in enumerate((parser.usage or "").splitlines()):
        if number:
            yield ".br"
        name, _, rest = line.strip().partition(" ")
        yield f"\\fB{_escaped(name)}\\fR {_escaped(rest)}"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in filter(None, re.split(r"\n\s*\n", text.strip())):
        yield ".PP"
        if paragraph.startswith("  "):  # A table.
            yield from (".nf", *map(_escaped, paragraph.splitlines()), ".fi")
        else:
            yield _escaped(" ".join(paragraph.split()))


def _option(action: argparse.Action) -> Iterator[str]:
    metavar = action.metavar or "|".join(action.choices or ())
    value = metavar if isinstance(metavar, str) else " ".join(metavar)
    yield ".TP"
    yield ", ".join(
        f"\\fB{_escaped(name)}\\fR" + (f" \\fI{_escaped(value)}\\fR" if value else "")
        for name in action.option_strings
    )
    yield _escaped((action.help or "") % {"default": action.default})


def _table(rows: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for left, right in rows:
        yield from (".TP", f"\\fB{_escaped(left)}\\fR", _escaped(right))


def _escaped(text: str) -> str:
    """As roff shows it: dashes that can be copied, and no line that is a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    write_man_page()
