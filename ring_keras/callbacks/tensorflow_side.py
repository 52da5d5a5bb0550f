"""What callbacks ask of a `fit` on TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import keras

from ring_keras.callbacks.broadcast_before_steps import BroadcastBeforeSteps
from ring_keras.callbacks.fit_side import CommonBeginning, FitSide
from ring_keras.callbacks.prepared_fits import prepare_fits
from ring_keras.callbacks.saves_with_parts import save_if_due
from ring_keras.callbacks.step_rates import Rule, StepRates
from ring_keras.callbacks.table_of_rates import TableOfRates
from ring_keras.job.process_set import ProcessSet
from ring_keras.keras_internals import calls
from ring_keras.optimizers.hooking import shards_state
from ring_keras.optimizers.sharded_files import one_rank_alone
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.distributed_models import process_set_of
from ring_keras.training.epoch_result import EpochResult
from ring_keras.training.evaluation_step import EvaluationStep

__all__ = ["TensorFlowSide"]

_Result = TypeVar("_Result")


class TensorFlowSide(FitSide):
    """Callbacks hook the model, and find their `fit` by the list that calls them."""

    def prepare_fits(self) -> None:  # noqa: D102  As in FitSide.
        prepare_fits()

    def prepare_callbacks(self) -> None:
        """Callbacks see to it when they are called."""

    def require_prepared(self, callback: keras.callbacks.Callback) -> None:
        """Keras's lists of callbacks are looked at as they are called."""

    def process_set_of(  # noqa: D102  As in FitSide.
        self, model: keras.Model
    ) -> ProcessSet:
        return process_set_of(model)

    def run_together(  # noqa: D102  As in FitSide.
        self, model: keras.Model, section: Callable[[], _Result]
    ) -> _Result | None:
        return DistributedFit.calling_sections().run(section)

    def save_if_due(  # noqa: D102  As in FitSide.
        self, model: keras.Model, root_rank: int, decide: Callable[[], None]
    ) -> Exception | None:
        if not shards_state(model):
            return super().save_if_due(model, root_rank, decide)
        return DistributedFit.calling_sections().run(
            lambda: save_if_due(model, process_set_of(model), root_rank, decide)
        )

    def one_rank_alone(  # noqa: D102  As in FitSide.
        self, what: str
    ) -> AbstractContextManager[None]:
        return one_rank_alone(what)

    def begin_alike(  # noqa: D102  As in FitSide.
        self,
        callback: keras.callbacks.Callback,
        root_rank: int,
        local_keys: set[Any],
    ) -> CommonBeginning:
        return BroadcastBeforeSteps(callback, root_rank, local_keys)

    def report_fit(  # noqa: D102  As in FitSide.
        self, callback: keras.callbacks.Callback
    ) -> None:
        attach(callback.model)
        DistributedFit.begin(callback)
        _cover_all_ranks(callback.model)

    def report_evaluation(  # noqa: D102  As in FitSide.
        self, callback: keras.callbacks.Callback, *, in_fit: bool
    ) -> None:
        callbacks = calls.calling_callback_list()
        if not in_fit and (callbacks is None or DistributedFit.of(callbacks)):
            return
        EvaluationStep.prepare(callback.model)
        _cover_all_ranks(callback.model)

    def step_rates(self, rule: Rule) -> StepRates:  # noqa: D102  As in FitSide.
        return TableOfRates(rule)


def _cover_all_ranks(model: keras.Model) -> None:
    callbacks = calls.calling_callback_list()
    if callbacks is not None:
        EpochResult.of(model).cover_all_ranks(callbacks)
