"""`ring explain` and `ringrun --explain`: what an error means, and what to do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ring_keras._codes import codes_of_class, explain
from ring_keras._version import __version__
from ring_keras.launch.output import say

__all__ = ["explain_errors", "main"]

_USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Explains what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="ring explain",
        description="Says what an error of ring_keras means, and how to fix it.",
    )
    parser.add_argument(
        "errors",
        nargs="+",
        metavar="CODE",
        help="a code, such as RK302, or a class, such as PeerLostError, to list its "
        "codes",
    )
    return explain_errors(",".join(parser.parse_args(arguments).errors))


def explain_errors(names: str) -> int:
    """Prints what the page says about errors, separated by commas; the exit code."""
    exit_code = 0
    for name in map(str.strip, names.split(",")):
        entry = explain(name)
        codes = codes_of_class(name)
        if entry is not None:
            print(entry)
        elif codes:
            print(f"{name} has one of these codes at the start of its text:\n")
            print("\n".join(f"  {code}  {title}" for code, title in codes.items()))
            print(f"\n`ring explain {next(iter(codes))}` explains the first.\n")
        else:
            say(f"{name}: ring_keras {__version__} has no error of this code or class")
            exit_code = _USAGE_ERROR
    return exit_code
