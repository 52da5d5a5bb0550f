"""Sees to it that each epoch of a `fit` is one pass over its data."""

import math
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import has_peers
from ring_keras.keras_internals import calls
from ring_keras.training.distributed_models import process_set_of
from ring_keras.values.objects import allgather_object
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["WholePasses"]

# How a pass may stand where an epoch's steps end.
_WHOLE, _LONGER, _SHORTER = "whole", "longer", "shorter"


class WholePasses:
    """Of the `fit` that is calling a callback.

    Where `steps_per_epoch` is given, Keras goes on with its iterator in the next epoch,
    whose place no checkpoint has. With data of unknown length it does so at the end of
    a pass, too, and the next epoch would have no step: here it begins another pass.

    Args:
        model: That is trained.
        steps: How many an epoch has; None if unknown.
        may_be_endless: Whether data without an end are alright.

    Raises:
        ValueError: On every rank, if epochs end, or begin, in the middle of a pass.
    """

    def __init__(
        self, model: keras.Model, steps: int | None, *, may_be_endless: bool
    ) -> None:
        self._model = model
        self._steps = steps
        self._process_set = process_set_of(model)
        self._looks = self._is_unknown = False
        run = calls.calling_run(model)
        if run is None or not run.keeps_iterator:
            return
        count = run.batch_count()
        self._is_unknown = count is None
        for theirs, of_theirs in self._of_all_ranks((steps, count), "resume/batches"):
            if of_theirs is None:
                self._looks = not may_be_endless
            elif of_theirs != theirs and not (of_theirs == math.inf and may_be_endless):
                raise _not_whole(
                    theirs,
                    f"data of {of_theirs} batches",
                    "Leave steps_per_epoch and repeat() out",
                )

    def end_epoch(self) -> None:
        """The steps of one are done, and more epochs follow; collective.

        Raises:
            ValueError: On every rank, if a pass over data of unknown length has not
                come to its end, or has done so before.
        """
        run = calls.calling_run(self._model)
        if not self._looks or run is None:
            return

        def look() -> tuple[str, str]:
            found = self._look(run) if self._is_unknown else _WHOLE
            return found, found

        if has_peers(self._process_set):
            # It runs the user's pipeline: an error in it is told to all.
            _, everyones = gather_outcomes("data.Resume", look, self._process_set)
        else:
            everyones = [look()[0]]
        for stand, what in ((_LONGER, "more"), (_SHORTER, "fewer")):
            ranks = [
                rank
                for rank, theirs in zip(self._process_set.ranks, everyones, strict=True)
                if theirs == stand
            ]
            if ranks:
                raise _not_whole(
                    self._steps,
                    f"data of unknown length, of which ranks {ranks} have {what} "
                    "batches",
                    "Pass the number of batches of a whole pass to fit()",
                )

    def _look(self, run: calls.Run) -> str:
        if self._model.stop_training:
            return _WHOLE  # Maybe not, but no epoch follows.
        batches = internals.pass_under_way(run.epoch_iterator)
        if batches is None:  # Keras has come to its end.
            return _SHORTER
        internals.begin_another_pass(run.epoch_iterator)
        return _WHOLE if next(batches, None) is None else _LONGER

    def _of_all_ranks(self, ours: object, name: str) -> list[Any]:
        if not has_peers(self._process_set):
            return [ours]
        return allgather_object(ours, name=name, process_set=self._process_set)


def _not_whole(steps: int | None, data: str, remedy: str) -> ValueError:
    return ValueError(
        "[RK512] "
        "ring_keras.data.Resume cannot continue in data whose epochs are not whole "
        f"passes. Received: steps_per_epoch={steps}, with {data}. {remedy}, or for "
        "shorter epochs take fewer batches: dataset.take(n)."
    )
