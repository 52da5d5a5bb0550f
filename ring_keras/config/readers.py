"""How the value of a variable is read from its text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ADDRESS",
    "DEVICE",
    "NAMES",
    "PATH",
    "SECONDS",
    "SWITCH",
    "TEXT",
    "TRANSPORT",
    "Reader",
    "choice",
    "integer",
    "split_address",
]


@dataclass(frozen=True)
class Reader:
    """How to read one kind of value; `parse` raises ValueError on a bad one."""

    takes: str
    parse: Callable[[str], Any]


def integer(at_least: int, at_most: int | None = None) -> Reader:
    """Integers of some range, of both ends."""
    takes = f"an integer of at least {at_least}"
    if at_most is not None:
        takes = f"an integer from {at_least} to {at_most}"

    def parse(text: str) -> int:
        value = int(text)
        if value < at_least or (at_most is not None and value > at_most):
            raise ValueError(text)
        return value

    return Reader(takes, parse)


def _parse_seconds(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(text)
    return value


def choice(*choices: str) -> Reader:
    """One of some words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return Reader("one of " + ", ".join(choices), parse)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `10.0.0.1:4711` or `[2001:db8::7]:4711`.

    Raises:
        ValueError: If it is something else.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(text)
    return host, int(port)


def _parse_address(text: str) -> str:
    split_address(text)
    return text


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(text)
    return names


def _parse_device(text: str) -> str:
    if text not in ("auto", "cpu") and not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return text


def _parse_transport(text: str) -> str:
    if text not in ("auto", "tcp", "mpi") and "/" not in text:
        raise ValueError(text)
    return text


def _parse_switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


SWITCH = Reader("0 or 1", _parse_switch)
DEVICE = Reader("auto, cpu, or the number of a GPU from 0", _parse_device)
TRANSPORT = Reader(
    "auto, tcp, mpi, or the path of a library, with a /", _parse_transport
)
SECONDS = Reader("a number of seconds above 0", _parse_seconds)
NAMES = Reader("names, separated by commas", _parse_names)
TEXT = Reader("text", str)
PATH = Reader("the path of a file", str)
ADDRESS = Reader("host:port", _parse_address)
