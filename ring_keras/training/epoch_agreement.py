"""The ranks end an epoch, and `fit`, in the same step."""

import math
from collections.abc import Callable

import keras
import numpy as np

from ring_keras import _native
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.training.sections import OthersWait
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["EpochAgreement"]

_GOES_ON, _ENDED, _STOPS, _MOST, _LESS, _SLOWEST = range(6)

# How a rank says that it goes on: the second, if it knows of others that wait to join.
_YES, _AFTER_OTHERS_HAVE_JOINED = 1, 2

# In microseconds; a batch of half an hour is not told from one of unknown time.
_UNKNOWN_TIME = 2**31 - 1


class EpochAgreement:
    """Asks all ranks, before each execution of steps, whether it will take place.

    A callback may set `model.stop_training` on one rank only: for a NaN in that
    rank's batch, by the clock, at a signal. That rank leaves the epoch, where the
    others ask for the next execution: they learn of it there, and end the epoch
    too, after as many steps. An epoch that some rank's data end sooner becomes an
    error of all.

    The question is an allreduce of 20 bytes, in a place where the ranks are
    about to wait for each other anyway. They ask before callbacks hear of the
    execution, so that all ranks' callbacks hear of the same ones. Ranks that may run
    out of data at different steps have their next batches before they ask.

    Args:
        model: The model that is trained. What the ranks agree on is its attribute
            `flag`.
        process_set: The ranks that train it together.
        others_wait: Whether this rank knows of processes that wait to join.
        asks_for_slowest: Whether the ranks say, too, how long a batch takes them.
        counts_steps: Whether each execution that is asked for is one step.
        name: Of the question.
        flag: The attribute of the model by which a callback ends the steps.
    """

    def __init__(
        self,
        model: keras.Model,
        process_set: ProcessSet,
        others_wait: Callable[[], bool],
        *,
        asks_for_slowest: bool = False,
        counts_steps: bool = False,
        name: str = "fit/goes_on",
        flag: str = "stop_training",
    ) -> None:
        self.process_set = process_set
        self._model = model
        self._others_wait = others_wait
        self._counts_steps = counts_steps
        self._name = name
        self._flag = flag
        self._count = (_SLOWEST if asks_for_slowest else _LESS) + 1
        self.executions = 0
        """How many have begun in this epoch."""
        self.over = False
        """Whether no more executions take place in this epoch, on any rank."""
        self.slowest = math.inf
        """The longest `batch_time` of all ranks; infinite where one knows none."""

    def begin_epoch(self) -> None:
        """Executions are counted from here."""
        self.executions = 0
        self.over = False

    def goes_on(
        self, batches: int | None = None, batch_time: float | None = None
    ) -> bool:
        """Before an execution: whether all ranks will run it.

        Args:
            batches: How many this rank has for it, where ranks may have different
                numbers. If none has any, all will run into the end of the data, unless
                a rank has stopped.
            batch_time: In how many seconds this rank takes one, if that is asked.

        Raises:
            RankMismatchError: If a rank has none left to run, or fewer batches.
            OthersWait: On every rank, if processes wait to join.
        """
        if self.over:
            return False
        if batches == 0:
            self.end_epoch()
            return not self._has_stopped()
        batches = batches or 0
        yes = _AFTER_OTHERS_HAVE_JOINED if self._others_wait() else _YES
        ours = {_GOES_ON: yes, _MOST: batches, _LESS: -batches}
        if batch_time is not None:
            ours[_SLOWEST] = int(min(max(batch_time * 1e6, 1), _UNKNOWN_TIME))
        answers = self._ask(self._name, ours)
        if answers[_STOPS]:
            self.over = True
            self._stop()
            return False
        if answers[_ENDED]:
            self._raise_uneven(ended=False)
        least = -int(answers[_LESS])
        if least < answers[_MOST]:
            self._raise_uneven(ended=batches < answers[_MOST], batches=least)
        if answers[_GOES_ON] == _AFTER_OTHERS_HAVE_JOINED:
            raise OthersWait
        self.executions += 1
        if batch_time is not None:
            longest = int(answers[_SLOWEST])
            self.slowest = math.inf if longest == _UNKNOWN_TIME else longest / 1e6
        return True

    def anyone_goes_on(self, has_batch: bool) -> bool:
        """Before a step of joined data: whether all ranks will take it.

        Args:
            has_batch: Whether this rank has data for it. If a rank has, those without
                take it, too.
        """
        if self.over:
            return False
        answers = self._ask(self._name, {_GOES_ON: _YES} if has_batch else {_ENDED: 1})
        if answers[_STOPS]:
            self._stop()
        self.over = bool(answers[_STOPS] or not answers[_GOES_ON])
        self.executions += not self.over
        return not self.over

    def end_epoch(self) -> None:
        """After the last execution, before metrics and validation.

        Raises:
            RankMismatchError: If a rank has one left to run, and none stops.
        """
        if self.over:
            return
        answers = self._ask(self._name, {_ENDED: 1, **self._stops()})
        self.over = True
        if answers[_STOPS]:
            self._stop()
        elif answers[_GOES_ON]:
            self._raise_uneven(ended=True)

    def agree_to_stop(self) -> None:
        """At the end of an epoch: `fit` ends on all ranks if it does on one."""
        if self._ask("fit/stops", self._stops())[_STOPS]:
            self._stop()

    def _stops(self) -> dict[int, int]:
        return {_STOPS: 1} if self._has_stopped() else {}

    def _has_stopped(self) -> bool:
        return bool(getattr(self._model, self._flag))

    def _stop(self) -> None:
        setattr(self._model, self._flag, True)

    def _ask(self, name: str, answers: dict[int, int]) -> np.ndarray:
        """Per answer, the highest value that a rank gives; 0 where it gives none."""
        ours = np.zeros(self._count, np.int32)
        ours[list(answers)] = list(answers.values())
        return _native.allreduce(
            ours,
            op=ReduceOp.MAX.value,
            name=name,
            communicator_id=self.process_set.communicator_id(),
            # A rank that fails in a step has the others leave this question, too.
            precedes_step=name == self._name,
        )

    def _raise_uneven(self, *, ended: bool, batches: int = 0) -> None:
        """Of ranks that have run out of data, some maybe within this execution."""
        flags = _native.allgather(
            np.array([ended]), "fit/ended_early", self.process_set.communicator_id()
        )
        ranks = self.process_set.ranks
        have_ended = [r for r, flag in zip(ranks, flags, strict=True) if flag]
        go_on = [r for r, flag in zip(ranks, flags, strict=True) if not flag]
        of_each = 1 if self._counts_steps else self._model.steps_per_execution
        steps = self.executions * of_each + batches
        raise RankMismatchError(
            "[RK318] "
            f"fit(): after {steps} steps of the epoch ranks {have_ended} have run out "
            f"of data, ranks {go_on} have more. Wrap the dataset in "
            "ring_keras.data.join(), which lets the others continue, or give every "
            "rank the same number of batches: ring_keras.data.shard() or "
            "steps_per_epoch."
        )
