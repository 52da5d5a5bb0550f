"""A library that is a transport, compiled from tests/toy_transport."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT_DIR = Path(__file__).resolve().parent.parent.parent
HEADERS_DIR = ROOT_DIR / "tf_ops" / "transport" / "library"
SOURCE = ROOT_DIR / "tests" / "toy_transport" / "toy_transport.c"

# Ranks of one machine that count as being on a host each.
APART = {"TESTS_APART": "1"}


@functools.cache
def compiled_toy(*definitions: str) -> Path:
    """Its path; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler for the toy transport")
    library = Path(tempfile.mkdtemp(prefix="ring-keras-toy-")) / "libtoy.so"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared"]
    options = [*strict, f"-I{HEADERS_DIR}", *definitions]
    subprocess.run([compiler, *options, "-o", str(library), str(SOURCE)], check=True)
    return library


def by_toy() -> dict[str, str]:
    """The variables of ranks on hosts of their own that reach each other by it."""
    return APART | {"RING_KERAS_TRANSPORT": str(compiled_toy())}
