"""Which of ringrun's options a command line has."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

__all__ = ["given_options"]


def given_options(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> dict[str, str]:
    """Names of options by what they set; one that says what goes without saying, too.

    Ends the process, with a message, if they are none of that parser's.
    """
    names: dict[str, Sequence[str]] = {}
    for action in parser._actions:
        names.setdefault(action.dest, action.option_strings)
    # Where there is a value, argparse puts no default.
    unset = argparse.Namespace(**dict.fromkeys([*names, *parser._defaults]))
    found, _ = parser.parse_known_args(arguments, unset)
    given = {
        name: words[0]
        for name, words in names.items()
        if words and getattr(found, name) is not None
    }
    for argument in arguments:
        # As it was written, if it stands for itself: `-np2` does not.
        word = argument.partition("=")[0]
        typed = parser._option_string_actions.get(word)
        if typed is not None and typed.dest in given:
            given[typed.dest] = word
    return given
