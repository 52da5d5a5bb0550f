"""What `fit` and `evaluate` report: of this rank's data, or of all ranks'."""

import weakref
from collections.abc import Mapping
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import has_peers
from ring_keras.keras_internals import calls
from ring_keras.states.metric_state import result_of_all_ranks
from ring_keras.training.calls_under_way import (
    begin_together,
    have_met,
    require_all_there,
)
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.distributed_models import process_set_of
from ring_keras.training.evaluation_step import EvaluationStep
from ring_keras.training.sections import Sections
from ring_keras.training.train_step import DistributedTrainStep

__all__ = ["EpochResult"]


class EpochResult:
    """Replaces the method by which a model reports an epoch, or an evaluation.

    Whose data a report covers depends on the call that asks for it: on its own
    list of callbacks, and on no other call before or around it. So `evaluate`
    without our callback asks no other rank, wherever it is called, and one rank may
    do so alone.

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._of_all: weakref.WeakSet[keras.callbacks.CallbackList] = weakref.WeakSet()

    @classmethod
    def of(cls, model: keras.Model) -> "EpochResult":
        """The one installed in this very model; installs it."""
        result = internals.replacement(model, internals.METRICS_RESULT)
        if not isinstance(result, cls):
            result = cls(model)
            internals.replace(model, internals.METRICS_RESULT, result)
        return result

    def cover_all_ranks(self, callbacks: keras.callbacks.CallbackList) -> None:
        """The call that goes through this list reports of all ranks' data.

        Of an evaluation that no `fit` has begun it is the beginning; then collective.
        """
        self._of_all.add(callbacks)
        process_set = process_set_of(self._model)
        # The same list may be given to several calls.
        begins = DistributedFit.of(callbacks) is None and not have_met()
        if begins and has_peers(process_set):
            begin_together(process_set)

    def __call__(self, logs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Called at the end of an epoch's steps, and of an evaluation's."""
        run = calls.calling_run(self._model)
        fit = None if run is None else DistributedFit.of(run.callbacks)
        if run is not None and run.trains and fit is not None:
            fit.end_steps()
        if run is not None and run.callbacks in self._of_all:
            if fit is not None and not run.trains:
                fit.end_validation()
            sections = Sections(self._meet) if fit is None else fit.sections
            of_all = sections.run(lambda: self._of_all_ranks(logs))
            if of_all is not None:
                return of_all
        return self._local(logs)

    def _meet(self) -> None:
        process_set = process_set_of(self._model)
        if has_peers(process_set):
            require_all_there(process_set)

    def _local(self, logs: Mapping[str, Any]) -> Mapping[str, Any]:
        """As Keras reports."""
        local = getattr(type(self._model), internals.METRICS_RESULT)
        result: Mapping[str, Any] = local(self._model, logs)
        return result

    def _of_all_ranks(self, logs: Mapping[str, Any]) -> Mapping[str, Any]:
        process_set = process_set_of(self._model)
        if not has_peers(process_set):
            return self._local(logs)
        return result_of_all_ranks(
            self._model,
            logs,
            self._local,
            process_set,
            has_evaluated_nothing=self._has_evaluated_nothing,
            had_examples=self._had_examples(),
        )

    def _had_examples(self) -> bool:
        """Whether this rank's logs are of examples of its own."""
        run = calls.calling_run(self._model)
        kind = DistributedTrainStep if run is None or run.trains else EvaluationStep
        step = kind.of(self._model)
        return step is None or step.own_examples.had()

    def _has_evaluated_nothing(self) -> bool:
        """Of an evaluation without logs, which a step of one's own may leave out."""
        run = calls.calling_run(self._model)
        if run is None or run.trains:
            return False
        is_kerass = type(self._model).test_step is keras.Model.test_step
        return is_kerass or run.batch_count() == 0
