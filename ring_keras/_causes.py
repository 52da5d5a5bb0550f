"""Errors in one line, as other ranks are told of them."""

from __future__ import annotations

import re

__all__ = ["in_one_line"]

_MOST = 500
# TensorFlow begins an error of a graph so, and says after the nodes' stacks what it is.
_GRAPH_ERROR = "Graph execution error:"
_FIRST_ROOT = re.compile(r"^\s*\(0\)\s+(.*)", re.MULTILINE)
# What stands around it: stacks, names of nodes, other errors.
_AROUND = re.compile(
    r"\s|\[\[|Detected at node|Traceback \(most|<stack traces|Stack trace for op"
    r"|\d+ root error\(s\)|\d+ successful operations|\d+ derived errors"
)
_DECORATION = re.compile(r"^(\{\{function_node .*?\}\}\s*)+|\s*\[Op:\S*\].*$")


def in_one_line(error: BaseException) -> str:
    """The error's class, and what it says of its cause.

    That is the first line of its text; but of an error of a TensorFlow graph, whose
    text begins with the nodes that were run, the line after those.
    """
    text = str(error)
    lines = text.splitlines() or [""]
    line = lines[0]
    if line.startswith(_GRAPH_ERROR) or _AROUND.match(line):
        root = _FIRST_ROOT.search(text)
        said = [one for one in lines[1:] if one and not _AROUND.match(one)]
        line = root[1] if root else (said or [line])[-1]
    line = f"{type(error).__name__}: {_DECORATION.sub('', line).strip()}"
    return line.strip()[:_MOST]
