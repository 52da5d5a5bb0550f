"""A browser, and pages of the real TensorBoard in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.board_page import BoardPage
from support.browser import chromium
from support.tensorboard import tensorboard

STATIC_DIR = Path(__file__).parents[2] / "ring_keras" / "tensorboard" / "static"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if not (STATIC_DIR / "index.js").exists():
        pytest.skip("needs the page: `make board`")
    with chromium() as started:
        yield started


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., BoardPage]]:
    """`show(address)` opens the page "Ring" of a TensorBoard."""
    with ExitStack() as stack:

        def show_one(address: str, *, dark: bool = False) -> BoardPage:
            context = browser.new_context(
                color_scheme="dark" if dark else "light",
                viewport={"width": 1280, "height": 900},
            )
            stack.callback(context.close)
            return BoardPage(context.new_page(), address)

        yield show_one


@pytest.fixture
def open_board(show: Any) -> Iterator[Callable[[Path], BoardPage]]:
    """`open_board(logdir)` gives that page of a new TensorBoard on that folder."""
    with ExitStack() as stack:
        yield lambda logdir: show(stack.enter_context(tensorboard(logdir)))
