"""Takes the pictures of docs/monitoring.md: a real run, TensorBoard, Chromium.

`python tests/board/screenshots.py` after `make test-board`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT_DIR = Path(__file__).resolve().parents[2]
IMAGES_DIR = ROOT_DIR / "docs" / "images" / "board"
TABS = ("Overview", "Ranks", "Stragglers", "Collectives", "Step", "Events")
WIDTH = 1120
# Of TensorBoard around the page.
FRAME_HEIGHT = 64

# The ranks import the worker by its name, and so do their processes.
sys.path[:0] = [str(ROOT_DIR), str(ROOT_DIR / "tests")]


def main() -> None:
    from playwright.sync_api import sync_playwright
    from support.board_page import BoardPage
    from support.browser import CHROMIUM_OPTIONS
    from support.run_ranks import run_ranks
    from support.slowed_training import init_and_train
    from support.tensorboard import tensorboard

    IMAGES_DIR.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        run_ranks(
            init_and_train,
            4,
            args=[Path(directory)],
            kwargs={
                "slow_compute": 2,
                "steps": 150,
                "units": 400,
                "seconds": 0.03,
                "bucket_size_bytes": 400_000,
                "checkpoint": Path(directory) / "best.weights.h5",
            },
            # As on two hosts, whose names the page shows.
            env=[{"RING_KERAS_HOST_NAME": "ab"[rank // 2]} for rank in range(4)],
            timeout_s=400,
        )
        with tensorboard(Path(directory)) as address, sync_playwright() as running:
            browser = running.chromium.launch(
                executable_path=shutil.which("chromium"), args=CHROMIUM_OPTIONS
            )
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    color_scheme=scheme, viewport={"width": WIDTH, "height": 820}
                )
                board = BoardPage(context.new_page(), address)
                for tab in TABS:
                    board.open_tab(tab)
                    board.charts()
                    height = board.frame.locator("body").evaluate(
                        "body => body.offsetHeight"
                    )
                    board.page.set_viewport_size(
                        {"width": WIDTH, "height": FRAME_HEIGHT + height}
                    )
                    board.page.wait_for_timeout(1000)  # Plotly fades lines in.
                    name = f"{tab.lower()}-{scheme}.png"
                    board.page.screenshot(path=IMAGES_DIR / name)
                context.close()
            browser.close()


if __name__ == "__main__":
    main()
