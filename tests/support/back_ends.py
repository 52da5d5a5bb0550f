"""Ranks whose Keras computes by torch or JAX, as KERAS_BACKEND says."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.engine_only import WITHOUT_TENSORFLOW
from support.run_ranks import run_ranks

__all__ = [
    "BACK_END",
    "HAS_EXECUTIONS",
    "begin",
    "needs_back_end",
    "on_back_end",
    "ranks",
]

BACK_END = os.environ.get("KERAS_BACKEND", "")
"""Of the tests in tests/engines/back_ends."""


def _keras() -> tuple[int, ...]:
    """The release, as in (3, 15); nothing is imported for it."""
    found = importlib.util.find_spec("keras")
    for folder in (found and found.submodule_search_locations) or ():
        text = (Path(folder) / "src" / "version.py").read_text()
        return tuple(map(int, re.findall(r"\d+", text)[:2]))
    return ()


HAS_EXECUTIONS = BACK_END == "jax" or _keras() >= (3, 16)
"""Whether Keras takes several steps at once: on torch from 3.16 on."""


def needs_back_end() -> None:
    """Leaves a module of tests out where there is none of the two."""
    if BACK_END not in ("torch", "jax"):
        pytest.skip("`make test-engines`", allow_module_level=True)


def ranks(
    worker: Callable[..., Any], size: int, *args: Any, env: Any = None, **options: Any
) -> Any:
    """Runs `worker` on that many new processes, which have no TensorFlow."""
    env = WITHOUT_TENSORFLOW | {"KERAS_BACKEND": BACK_END} | (env or {})
    return run_ranks(worker, size, args=args, env=env, **options)


def begin() -> Any:
    """Joins the job, once, with one thread of the framework's; ring_keras."""
    import ring_keras as ring

    if BACK_END == "torch":
        import torch

        torch.set_num_threads(1)
    if not ring.is_initialized():
        ring.init()
    return ring


def on_back_end(**values: Any) -> Any:
    """The one of this back end; an empty dictionary, where no tests are to run."""
    return values.get(BACK_END, {})
