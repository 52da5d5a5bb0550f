"""Properties that hold for any input, which Hypothesis looks for exceptions to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

Value = TypeVar("Value")

QUICK_AND_DEEP = pytest.mark.parametrize(
    "examples",
    [
        pytest.param(40, id="quick"),
        pytest.param(1_000, id="deep", marks=[pytest.mark.slow]),
    ],
)
"""Gives a test `examples`, of which only the few belong to the quick suite."""


def for_any(
    inputs: SearchStrategy[Value], check: Callable[[Value], Any], examples: int
) -> None:
    """Calls `check` with inputs, the same ones in every run of that version."""
    run = settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )(given(inputs)(check))
    run()
