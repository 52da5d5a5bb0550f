"""Debian's Chromium, for tests of pages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

# It runs as root in CI, where Chromium has no sandbox; and it asks nobody outside.
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser; skips the test that asks for one where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium: build_support/install_board_tools.sh, as root")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(
            executable_path=program, args=CHROMIUM_OPTIONS
        )
        yield started
        started.close()
