"""What a shell must know of each option."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["OptionWords", "option_words"]

# Of metavars, what the value is.
_FILES = {"FILE", "PATH"}
_DIRECTORIES = {"DIR"}
_COMMANDS = {"COMMAND"}
# Words that options take whose help names them.
_VALUES = {
    "log_level": ("debug", "info", "warning", "error", "off"),
    "transport": ("auto", "tcp"),
}


@dataclass(frozen=True)
class OptionWords:
    """One option.

    Attributes:
        names: All that it is called.
        count: How many words follow it.
        kind: What these are: `file`, `directory`, `command`, `words`, or `other`.
        words: All that may follow, where `kind` is `words`.
        title: Of the value.
        help: What it does, in one line.
        repeated: Whether it may come again.
    """

    names: tuple[str, ...]
    count: int
    kind: str
    words: tuple[str, ...]
    title: str
    help: str
    repeated: bool


def option_words(parser: argparse.ArgumentParser) -> Iterator[OptionWords]:
    """Those of a parser that its help shows."""
    for action in parser._actions:
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        metavar = action.metavar
        title = " ".join(metavar) if isinstance(metavar, tuple) else metavar or "value"
        count = 1 if action.nargs is None else int(action.nargs)
        known = action.choices or _VALUES.get(action.dest, ())
        words = tuple(known) if count else ()
        help_text = (action.help or "") % {
            "default": action.default,
            "prog": parser.prog,
        }
        yield OptionWords(
            names=tuple(action.option_strings),
            count=count,
            kind="words" if words else _kind(title),
            words=words,
            title=title,
            help=help_text,
            repeated=isinstance(action, argparse._AppendAction),
        )


def _kind(title: str) -> str:
    if title in _FILES:
        return "file"
    if title in _DIRECTORIES:
        return "directory"
    return "command" if title in _COMMANDS else "other"
