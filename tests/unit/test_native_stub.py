"""_native.pyi says what the built module has."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import ring_keras
from ring_keras import _native

STUB = Path(ring_keras.__file__).with_name("_native.pyi")
TREE = ast.parse(STUB.read_text())
FUNCTIONS = [node for node in TREE.body if isinstance(node, ast.FunctionDef)]
CLASSES = [node for node in TREE.body if isinstance(node, ast.ClassDef)]


def public(value: object) -> list[str]:
    return sorted(name for name in dir(value) if not name.startswith("_"))


def test_names() -> None:
    assert sorted(node.name for node in [*FUNCTIONS, *CLASSES]) == public(_native)


@pytest.mark.parametrize("node", FUNCTIONS, ids=lambda node: node.name)
def test_arguments(node: ast.FunctionDef) -> None:
    arguments = [arg.arg for arg in [*node.args.args, *node.args.kwonlyargs]]
    # pybind11 writes the signature into the docstring's first line.
    doc = inspect.getdoc(getattr(_native, node.name)) or ""
    inside = doc.splitlines()[0].split("(", 1)[1].rsplit(") ->", 1)[0]

    assert arguments == re.findall(r"(\w+): ", inside)


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_methods(node: ast.ClassDef) -> None:
    methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
    built = public(getattr(_native, node.name))

    assert sorted(name for name in methods if name != "__init__") == built
