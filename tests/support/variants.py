"""Parameters of one test, some of which say nearly what another one says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["variants"]


def variants(quick: Iterable[Any], slow: Iterable[Any]) -> list[Any]:
    """What `pytest.mark.parametrize` takes; those of `slow` are run by the slow tests.

    One that is in both is quick. Tuples are the values of several parameters.
    """
    quick = list(quick)
    rest = [one for one in slow if one not in quick]
    return [
        *quick,
        *(
            pytest.param(
                *(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow
            )
            for one in rest
        ),
    ]
