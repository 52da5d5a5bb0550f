"""Fixtures for every test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# `support` is imported by its name whatever pytest's import mode is.
TESTS_DIR = str(Path(__file__).resolve().parent)
if TESTS_DIR not in sys.path:
    sys.path.insert(0, TESTS_DIR)

from support.rank_pool import RankPools  # noqa: E402


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPools]:
    """Warm ranks: `rank_pool(size).run(worker)`; see `support.RankPool`.

    `rank_pool(size, env={"RING_KERAS_TRANSPORT": "tcp"})` gives ranks with that
    in their environment. With TESTS_WITHOUT_TENSORFLOW in it they join the core
    alone, in a tenth of the time.
    """
    pools = RankPools()
    yield pools
    pools.close()
