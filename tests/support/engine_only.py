"""Ranks that join by the engine alone, without TensorFlow and its seconds."""

from __future__ import annotations

import atexit
import sys

from ring_keras import _native

WITHOUT_TENSORFLOW = {"TESTS_WITHOUT_TENSORFLOW": "1"}
"""Has a rank be a Python of its own, and join so where it is warm."""


def join() -> tuple[int, int]:
    """Joins the job without TensorFlow; this rank and the number of ranks.

    As if there were none: the core's errors are then `RuntimeError`s whose text
    begins with the name of the class that they would have.
    """
    from ring_keras.config import Config
    from ring_keras.schedulers import store_options

    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    config = Config.from_environment()
    _native.init(**config.init_options() | store_options(config))
    atexit.register(_native.shutdown, "the test ended")
    return rank_and_size()


def rank_and_size() -> tuple[int, int]:
    rank, size, *_ = _native.topology()
    return rank, size
