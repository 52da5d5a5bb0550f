"""Runs real `ringrun` processes on small scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ringrun import Ringrun
from support.terminal import Terminal


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with contextlib.closing(Terminal()) as made:
        yield made


@pytest.fixture
def ringrun(tmp_path: Path) -> Iterator[Ringrun]:
    runner = Ringrun(tmp_path)
    yield runner
    runner.close()
