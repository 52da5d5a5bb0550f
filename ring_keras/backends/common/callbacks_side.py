"""What callbacks ask of a `fit` on torch or JAX, which does most by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import keras

from ring_keras.backends.common.fit import prepare_fits
from ring_keras.backends.common.framework import framework
from ring_keras.backends.common.hook import process_set_of
from ring_keras.backends.common.ranks_fit import RanksFit
from ring_keras.callbacks.fit_side import CommonBeginning, FitSide
from ring_keras.callbacks.step_rates import Rule, StepRates
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet, has_peers
from ring_keras.training.calls_under_way import calls_under_way, require_all_there

__all__ = ["CallbacksSide"]

_Result = TypeVar("_Result")


class CallbacksSide(FitSide):
    """Callbacks tell the `RanksFit` under way what it is to do; without one, nothing.

    `fit` and `evaluate` themselves look for callbacks in which the ranks meet.
    """

    def prepare_fits(self) -> None:  # noqa: D102  As in FitSide.
        prepare_fits()

    def prepare_callbacks(self) -> None:  # noqa: D102  As in FitSide.
        prepare_fits()

    def require_prepared(  # noqa: D102  As in FitSide.
        self, callback: keras.callbacks.Callback
    ) -> None:
        _known_fit(callback, callback.model)

    def process_set_of(  # noqa: D102  As in FitSide.
        self, model: keras.Model
    ) -> ProcessSet:
        return process_set_of(model)

    def run_together(  # noqa: D102  As in FitSide.
        self, model: keras.Model, section: Callable[[], _Result]
    ) -> _Result | None:
        if RanksFit.of(model) is not None:
            require_all_there(process_set_of(model))
        return section()

    def one_rank_alone(  # noqa: D102  As in FitSide.
        self, what: str
    ) -> AbstractContextManager[None]:
        return contextlib.nullcontext()  # Each rank has all that it may save.

    def begin_alike(  # noqa: D102  As in FitSide.
        self,
        callback: keras.callbacks.Callback,
        root_rank: int,
        local_keys: set[Any],
    ) -> CommonBeginning:
        ranks_fit = _known_fit(callback, callback.model)
        if ranks_fit is not None:
            ranks_fit.begin_alike(root_rank, local_keys)
        return CommonBeginning()

    def report_fit(  # noqa: D102  As in FitSide.
        self, callback: keras.callbacks.Callback
    ) -> None:
        ranks_fit = _known_fit(callback, callback.model)
        if ranks_fit is not None:
            ranks_fit.must_report_all = True

    def report_evaluation(  # noqa: D102  As in FitSide.
        self, callback: keras.callbacks.Callback, *, in_fit: bool
    ) -> None:
        if not any(call.method == "evaluate" for call in calls_under_way()):
            _known_fit(callback, callback.model)

    def step_rates(self, rule: Rule) -> StepRates:  # noqa: D102  As in FitSide.
        _known_fit(rule, rule.model)
        return framework().rates(rule)


def _known_fit(callback: Any, model: keras.Model) -> RanksFit | None:
    """That of the ranks, which calls this callback; None if there is but one rank.

    Raises:
        RingKerasError: If ranks should meet in the call, and it knows nothing of them.
    """
    ranks_fit = RanksFit.of(model)
    if ranks_fit is None:
        process_set = process_set_of(model)
        if has_peers(process_set) and process_set.included():
            raise RingKerasError(
                f"[RK357] ring_keras.callbacks.{type(callback).__name__} was made in "
                "the very call of fit() or evaluate() that has it, which Python had "
                "looked up before ring_keras could see to it, or something else than "
                "these calls it. Import Keras before ring_keras.init(), or make the "
                "callback in a line before that call. In a loop of your own set the "
                "learning rate yourself."
            )
    return ranks_fit
