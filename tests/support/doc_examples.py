"""The examples of public docstrings, run on real ranks."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.doc_pages import DOCS_DIR, read_page

REFERENCE_DIR = DOCS_DIR / "reference"

_ENTRY = re.compile(r"^::: (\S+)$", re.M)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def documented_names() -> list[str]:
    """What the pages of the API reference document, by their order there."""
    return [
        name
        for page in sorted(REFERENCE_DIR.glob("*.md"))
        for name in _ENTRY.findall(page.read_text())
    ]


def find(name: str) -> Any:
    """The object of that name."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def examples_of(name: str) -> list[doctest.Example]:
    """Those in its docstring."""
    return doctest.DocTestParser().get_examples(inspect.getdoc(find(name)) or "")


def run_examples(name: str, directory: Path, extra: dict[str, Any]) -> None:
    """Runs an object's examples as this rank; raises AssertionError where one errs.

    What is printed must be what the docstring shows on rank 0. Other ranks run the
    same, and may see other values.

    Args:
        name: The object's.
        directory: Where they may write files, the same on every rank.
        extra: Names that they know besides those of the reference's first page.
    """
    names = _common_names() | extra
    test = doctest.DocTest(examples_of(name), names, name, None, None, None)
    output: list[str] = []
    rank = int(os.environ.get("RING_KERAS_RANK", "0"))
    runner = doctest.DebugRunner(
        checker=None if rank == 0 else _AnyOutput(), optionflags=_FLAGS, verbose=False
    )
    with _in(directory):
        try:
            runner.run(test, out=output.append, clear_globs=False)
        except doctest.DocTestFailure as failed:
            raise AssertionError(
                f"{name}: rank {rank} got\n{textwrap.indent(failed.got, '    ')}"
                f"from\n{textwrap.indent(failed.example.source, '    ')}"
                f"not\n{textwrap.indent(failed.example.want, '    ')}"
            ) from None
        except doctest.UnexpectedException as failed:
            raise AssertionError(
                f"{name}: rank {rank} failed in\n{failed.example.source}"
            ) from failed.exc_info[1]


class _AnyOutput(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return True


def _common_names() -> dict[str, Any]:
    """What the reference's first page says that all examples begin with."""
    names: dict[str, Any] = {"__name__": "__main__"}
    script = read_page(REFERENCE_DIR / "index.md").script()
    exec(compile(script or "", "docs/reference/index.md", "exec"), names)
    return names


@contextlib.contextmanager
def _in(directory: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
