"""Runs real `ringrun` processes on small scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ringrun import Ringrun


@pytest.fixture
def ringrun(tmp_path: Path) -> Iterator[Ringrun]:
    runner = Ringrun(tmp_path)
    yield runner
    runner.close()
