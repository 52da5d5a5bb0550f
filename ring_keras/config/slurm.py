"""Slurm's short forms of lists."""

from __future__ import annotations

import re

from ring_keras.config.errors import ConfigError

__all__ = ["expand_counts", "expand_nodes"]

# More digits are a mistake, too; Python reads no more than 4,300.
_COUNT = re.compile(r"(\d{1,18})(?:\(x(\d{1,18})\))?", re.ASCII)
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
# What stands between commas that are in no brackets.
_NODES = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
# One bracket of it.
_BRACKET = re.compile(r"\[([^\[\]]*)\]")

# More is a mistake, and would take all memory.
_MAX_COUNT = 1 << 20


def expand_counts(name: str, text: str) -> list[int]:
    """Reads what Slurm says of each node, in order: `2(x3),1` is 2, 2, 2, 1.

    Args:
        name: The variable that holds it, for the message.
        text: What it holds.

    Raises:
        ConfigError: If it is something else.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        repeats = int(found[2] or 1) if found else 0
        if found is None or len(counts) + repeats > _MAX_COUNT:
            raise ConfigError(
                "[RK123] "
                f"{name} must be numbers such as 2(x3),1. Received: {name}={text!r}"
            )
        counts += [int(found[1])] * repeats
    return counts


def expand_nodes(name: str, text: str) -> list[str]:
    """Reads a list of nodes: `n[01-03,7],m1` is n01, n02, n03, n7, m1.

    Args:
        name: The variable that holds it, for the message.
        text: What it holds.

    Raises:
        ConfigError: If it is something else.
    """
    parts = _NODES.findall(text)
    if ",".join(parts) != text or not parts:
        raise _not_nodes(name, text)
    nodes: list[str] = []
    for part in parts:
        nodes += _expand_brackets(name, text, part, _MAX_COUNT - len(nodes))
    return nodes


def _expand_brackets(name: str, text: str, part: str, limit: int) -> list[str]:
    """Of one part, the brackets from left to right: a[0-1]b[0-1] is four."""
    # Between what stands in no brackets is what stands in some.
    pieces = _BRACKET.split(part)
    nodes = [pieces[0]]
    for inside, after in zip(pieces[1::2], pieces[2::2], strict=True):
        numbers: list[str] = []
        for piece in inside.split(","):
            between = _RANGE.fullmatch(piece)
            if between is None:
                raise _not_nodes(name, text)
            first, last = between[1], between[2] or between[1]
            count = int(last) - int(first) + 1
            if count < 1 or (len(numbers) + count) * len(nodes) > limit:
                raise _not_nodes(name, text)
            # 08-10 keeps its zeros.
            width = len(first)
            numbers += [f"{int(first) + step:0{width}d}" for step in range(count)]
        nodes = [node + number + after for node in nodes for number in numbers]
    if len(nodes) > limit:
        raise _not_nodes(name, text)
    return nodes


def _not_nodes(name: str, text: str) -> ConfigError:
    return ConfigError(
        "[RK123] "
        f"{name} must be names of nodes such as n[01-03,7],m1. "
        f"Received: {name}={text!r}"
    )
