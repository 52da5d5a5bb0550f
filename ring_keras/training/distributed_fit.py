"""One call of `fit`, as all its ranks run it."""

import enum
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Optional

import keras

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import global_process_set, has_peers
from ring_keras.keras_internals import calls
from ring_keras.layers.moving_statistics import layers_apart
from ring_keras.ops.data_order import require_common_orders
from ring_keras.optimizers.common_variables import common_state, split_weights
from ring_keras.optimizers.meeting_hook import meeting_optimizers
from ring_keras.optimizers.optimizer_hook import OptimizerHook, Terms
from ring_keras.states.equal_weights import require_equal
from ring_keras.states.layer_state import (
    agree_on_state,
    warn_of_averages,
)
from ring_keras.states.moving_moments import average_moments
from ring_keras.states.weight_digests import all_digests
from ring_keras.training.asked_executions import AskedExecutions
from ring_keras.training.calls_under_way import (
    begin_together,
    calls_under_way,
    have_met,
    require_all_there,
)
from ring_keras.training.common_fit import require_common_fit
from ring_keras.training.common_values import require_common_epoch
from ring_keras.training.data_orders import DataOrders
from ring_keras.training.distributed_models import (
    is_local_in,
    parts_of,
    process_set_of,
)
from ring_keras.training.epoch_agreement import EpochAgreement
from ring_keras.training.noted_saves import noted_saves
from ring_keras.training.own_pace import OwnPace, takes_own_pace
from ring_keras.training.parts import (
    is_extended,
    is_joined,
    warn_of_parts_of_others,
)
from ring_keras.training.saved_place import SavedPlace
from ring_keras.training.sections import OthersWait, Sections
from ring_keras.training.train_step import DistributedTrainStep
from ring_keras.training.weight_check import WeightCheck

__all__ = ["DistributedFit", "Moment"]


class Moment(enum.Enum):
    """When a task of a call is due: see `DistributedFit.when`. In this order."""

    ALL_HAVE_BEGUN = enum.auto()
    """Once, at the end of `on_train_begin`; may be collective."""

    RANKS_TAKE_ONES_STATE = enum.auto()
    """When all are about to take one's variables: in the first step, before it."""

    RANKS_ARE_ALIKE = enum.auto()
    """When all have taken one's variables, before the first step."""

    FIRST_EXECUTION_IS_DONE = enum.auto()
    """Once, after the execution that is traced; may be collective."""

    STEPS_END = enum.auto()
    """After each epoch's steps, before anything is reported; may be collective.

    That is after the same step on every rank, whether the epoch is cut short or not.
    """

    VALIDATION_ENDS = enum.auto()
    """Before the metrics of a validation are averaged; may be collective.

    Only where they are, so all ranks come there.
    """

    RANKS_HAVE_CHANGED = enum.auto()
    """When this rank has the others' state, before it goes on."""


_ONCE = (Moment.ALL_HAVE_BEGUN, Moment.FIRST_EXECUTION_IS_DONE)


def outside_of_fit(callback: keras.callbacks.Callback) -> RingKerasError:
    """What a callback raises that is nothing without a `fit`, if none is calling it."""
    return RingKerasError(
        "[RK601] "
        f"ring_keras.callbacks.{type(callback).__name__} belongs in the callbacks of "
        "fit(), but something else called it."
    )


class DistributedFit(keras.callbacks.Callback):
    """What belongs to one call of `fit` on several ranks, and ends with it.

    The first callback of ours that begins puts it at the end of that call's list
    of callbacks. Being in the list that a call goes through is what makes it that
    call's: a `fit` that failed, or an `evaluate` inside of one, has another list.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sections = Sections(self.require_all_there)
        """All that the ranks do together in this call."""
        self.epochs = 0
        """How many have ended that several ranks have trained in."""
        self.executions: AskedExecutions
        """Those of this call, from its begin."""
        self.agreement: EpochAgreement | None = None
        """In which steps epochs, and the call, end on all ranks; None before."""
        self.restored: SavedPlace | None = None
        """Where training was when what a callback has restored was saved, on the rank
        that has; None if it does not say."""
        self.pace: OwnPace | None = None
        """By which this rank takes batches; None: as many as all others."""
        self.stays_apart: Callable[[bool], bool] = lambda is_cut: False
        """Says whether ranks that train apart do not meet at the end of an epoch's
        steps, because `fit` ends there and the next one goes on; on all ranks, may be
        collective. Given whether this rank knows of steps that are left."""
        self._tasks: dict[Moment, dict[Hashable, Callable[[], None]]] = {
            moment: {} for moment in Moment
        }
        self._last_tasks: list[Callable[[], None]] = []
        self._local: set[Hashable] = set()
        self._members: dict[int, str] = {}
        self._have_met = False
        # Of this call; on_train_begin finds out.
        self._process_set = global_process_set
        self._check: WeightCheck | None = None
        # Since the last comparison of what each has trained.
        self._are_new = True
        # Whether `fit` is to end where the ranks do not meet.
        self._ends_apart = False
        self._done_executions = 0
        self._said: set[str] = set()
        self._orders = DataOrders()
        self._is_joined = False
        self._end_of_noting: Callable[[], Any] = lambda: None

    @staticmethod
    def of(callbacks: keras.callbacks.CallbackList) -> Optional["DistributedFit"]:
        """The one in this list, if a callback of ours is there."""
        for callback in callbacks.callbacks:
            if isinstance(callback, DistributedFit):
                return callback
        return None

    @staticmethod
    def calling_sections() -> Sections:
        """Those of the `fit` which is calling a callback."""
        callbacks = calls.calling_callback_list()
        fit = None if callbacks is None else DistributedFit.of(callbacks)
        return Sections() if fit is None else fit.sections

    @classmethod
    def begin(cls, callback: keras.callbacks.Callback) -> Optional["DistributedFit"]:
        """That of the `fit` which is calling this callback of ours.

        None if none is: somebody calls the callback without a list.
        """
        callbacks = calls.calling_callback_list()
        if callbacks is None:
            return None
        fit = cls.of(callbacks)
        if fit is None:
            # The list grows while Keras goes through it, so this one is called
            # when all others have been.
            fit = cls()
            fit.set_params(callbacks.params)
            fit.set_model(callbacks.model)
            callbacks.callbacks.append(fit)
            fit.when_call_is_over(fit._forget_epoch)
            fit.when_call_is_over(fit._note_left)
        fit._members[id(callback)] = type(callback).__name__
        fit._have_met = have_met()
        return fit

    def when(self, moment: Moment, owner: Hashable, task: Callable[[], None]) -> None:
        """Has a task run at that moment of this call; one for each owner."""
        self._tasks[moment][owner] = task

    def take_tasks(self, moment: Moment) -> list[Callable[[], None]]:
        """Those that are due now."""
        tasks = list(self._tasks[moment].values())
        if moment in _ONCE:
            self._tasks[moment].clear()
        return tasks

    def when_call_is_over(self, task: Callable[[], None]) -> None:
        """Has a task run once, after all callbacks; for `on_train_end`.

        With other ranks, when these have come to the end of their calls, too.
        """
        calls = calls_under_way()
        (calls[-1].afterwards if calls else self._last_tasks).append(task)

    def _forget_epoch(self) -> None:
        # Keras keeps it, and the next `fit` would begin there, too.
        internals.set_initial_epoch(self.model, None)

    def _note_left(self) -> None:
        for optimizer in meeting_optimizers(self.model):
            optimizer.note_left()

    def ranks_take_ones_state(self) -> None:
        """All ranks are about to have the same variables."""
        for task in self.take_tasks(Moment.RANKS_TAKE_ONES_STATE):
            task()

    def ranks_are_alike(self) -> None:
        """All ranks have the same variables, which may be others than before."""
        for task in self.take_tasks(Moment.RANKS_ARE_ALIKE):
            task()

    def ranks_have_changed(self) -> None:
        """There are other ranks than before, and this one has their state."""
        self._check = self._new_check()
        self._are_new = True
        for task in self.take_tasks(Moment.RANKS_HAVE_CHANGED):
            task()

    def execution_is_done(self) -> None:
        """One or more steps have been taken; may be collective."""
        tasks = self.take_tasks(Moment.FIRST_EXECUTION_IS_DONE)
        check = self._check
        if check is not None and check.count(self.model.steps_per_execution):
            tasks.insert(0, check.compare)
        if tasks:
            self.require_all_there()
        for task in tasks:
            task()

    def leave_local(self, keys: Iterable[Hashable]) -> None:
        """Each rank has its own value of the variables with these keys."""
        self._local.update(keys)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """All callbacks have begun."""
        # The list may be the user's own, and have served another call.
        members, self._members = self._members, {}
        self._note_saves()
        self._process_set = process_set_of(self.model)
        self.pace = OwnPace(self.model) if takes_own_pace(self.model) else None
        self.agreement = EpochAgreement(
            self.model,
            self._process_set,
            lambda: self.sections.others_wait(),
            asks_for_slowest=self.pace is not None and self.pace.is_measured,
        )
        self.executions = AskedExecutions(self.model, self.goes_on)
        self._check = None
        self.epochs = 0
        self._are_new = True
        self._ends_apart = False
        self._said.clear()
        run = calls.calling_run(self.model)
        self._orders = DataOrders(run)
        self._is_joined = run is not None and is_extended(run.data)
        # Before the ranks meet: it may ask the user's own data.
        batch_count = None if run is None else _length(run)
        tasks = self.take_tasks(Moment.ALL_HAVE_BEGUN)
        self.sections.begin(
            lambda: self._begin_together(run, batch_count, members.values(), tasks)
        )
        self._have_met = True
        # An elastic one asks in an execution, which begins anew where a rank is lost.
        if run is not None and self._has_peers() and self.sections.steps() is None:
            self.executions.ask_in(run)

    def _note_saves(self) -> None:
        self._end_of_noting()
        # A `fit` that raises does not come to `on_train_end`.
        end = weakref.finalize(self, noted_saves(self.model).close)
        end.atexit = False
        self._end_of_noting = end

    def _begin_together(
        self,
        run: calls.Run | None,
        batch_count: float | str | None,
        members: Iterable[str],
        tasks: Iterable[Callable[[], None]],
    ) -> None:
        self._check = self._new_check()
        if self._has_peers():
            if not self._have_met:
                begin_together(self._process_set, parts_of(self.model))
            if run is not None:
                warn_of_parts_of_others(
                    run.data, run.validation_data, self._process_set
                )
            self._orders.require_whole_epochs(batch_count, self.params.get("steps"))
            steps = self.sections.steps()
            if steps is not None:
                self.params["steps"] = batch_count = steps
            elif given := self._orders.given:
                require_common_orders(given, self._process_set, unbegun=True)
            if not require_common_fit(
                self.model,
                self.params,
                batch_count,
                members,
                self._process_set,
                run=run,
                optimizers=self._terms(),
            ):
                self.executions.take_batches()
        if self.pace is not None:  # On all ranks, or their terms differ.
            self.pace.require_possible(
                run, has_orders=self._orders.any, process_set=self._process_set
            )
        for optimizer in meeting_optimizers(self.model):
            # Of a `fit` that failed.
            optimizer.drop_flights()
            optimizer.log.watch(False)
        for task in tasks:
            task()

    def _terms(self) -> list[tuple[str, Terms]]:
        """The name of each optimizer that the ranks have in common, and its terms."""
        common = [*self._common_optimizers(), *meeting_optimizers(self.model)]
        return [
            (optimizer.name, hook.terms)
            for optimizer in common
            if (hook := OptimizerHook.of(optimizer)) is not None
        ]

    def _new_check(self) -> WeightCheck | None:
        every = current_job().config.check_steps
        if not every or not self._has_peers():
            return None
        return WeightCheck(self.model, self.is_local(), self._process_set, every)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Steps are counted from here, and data begin to be read after this."""
        assert self.agreement is not None
        self.agreement.begin_epoch()
        self._orders.begin_epoch(epoch)
        step = DistributedTrainStep.of(self.model)
        if step is not None:
            step.own_examples.begin()
        self.sections.begin_epoch(epoch, lambda: self._begin_epoch_together(epoch))
        _native.begin_steps()
        if self.pace is not None:
            self.pace.begin_epoch()

    def _begin_epoch_together(self, epoch: int) -> None:
        if self._has_peers():
            # Before the first one, ranks may not have begun alike.
            optimizers = self._common_optimizers() if self.epochs else []
            require_common_epoch(epoch, optimizers, self._process_set)

    def _common_optimizers(self) -> list[keras.optimizers.Optimizer]:
        """Those that apply the same gradients on all ranks of this `fit`."""
        return [
            optimizer
            for optimizer in internals.innermost_optimizers(self.model)
            if (hook := OptimizerHook.of(optimizer)) is not None
            and hook.process_set.key() == self._process_set.key()
        ]

    def set_order(self, epoch: int) -> None:
        """The next pass over the data has the order of that epoch."""
        self._orders.set_epoch(epoch)

    def goes_on(self, batches: int | None = None) -> bool:
        """Before an execution: whether all ranks will run it; collective.

        Args:
            batches: How many this rank has taken for it, if that is asked.

        Raises:
            RankMismatchError: On every rank, if some have run out of data.
            OthersWait: On every rank, if processes wait to join.
        """
        if not self._has_peers():
            if self.sections.others_wait():
                raise OthersWait
            return True
        assert self.agreement is not None
        if self.pace is None:
            return self.agreement.goes_on(batches)
        goes_on = self.agreement.goes_on(batches, self.pace.batch_time)
        self.pace.follow(self.agreement.slowest)
        return goes_on

    @property
    def epoch_is_over(self) -> bool:
        """Whether no more executions take place in it: a rank has stopped, or data."""
        return self.agreement is not None and self.agreement.over

    @epoch_is_over.setter
    def epoch_is_over(self, is_over: bool) -> None:
        assert self.agreement is not None
        self.agreement.over = is_over

    def skip(self, executions: int) -> None:
        """Makes the first ones only read their batches: their steps are done."""
        self._done_executions = executions

    def is_done_already(self) -> bool:
        """Whether the next execution is one of those."""
        if self._done_executions == 0:
            return False
        self._done_executions -= 1
        return True

    def end_steps(self) -> None:
        """The steps of an epoch are done, and nothing is reported yet; collective."""
        if self.sections.run(self._end_steps_together, meets=True):
            self.model.stop_training = True
        self.epoch_is_over = True
        if self.pace is not None:
            self.pace.end_steps()
        if self._has_peers():
            self.epochs += 1
        for task in self.take_tasks(Moment.STEPS_END):
            task()

    def end_validation(self) -> None:
        """Its steps are done, and metrics are about to be averaged; collective."""
        for task in self.take_tasks(Moment.VALIDATION_ENDS):
            task()

    def _end_steps_together(self) -> bool:
        """Returns whether training ends."""
        if self._has_peers():
            assert self.agreement is not None
            self.agreement.end_epoch()
            self.require_all_there()  # Some know since they asked for an execution.
            given = self._orders.given
            if given and self._orders.follow_epochs:  # Else read ahead of the steps.
                require_common_orders(given, self._process_set)
            average_moments(
                layers_apart(self.model, self.is_local()), self._process_set
            )
            apart = meeting_optimizers(self.model)
            stay_apart = bool(apart) and self.stays_apart(self._is_cut())
            self._ends_apart = stay_apart
            for optimizer in apart if not stay_apart else ():
                optimizer.meet()
            # What trains alone does so from the beginning.
            when = None
            if self._are_new and not stay_apart:
                others = " with other ranks" if self.epochs else ""
                when = f"after the first epoch{others}"
            self._are_new = False
            self._make_one_model(when)
        return bool(self.model.stop_training)

    def _is_cut(self) -> bool:
        """Whether the epoch has had fewer steps than it has."""
        left = self._steps_left()
        return left is not None and left > 0

    def _steps_left(self) -> int | None:
        """How many steps the epoch has before it; None if unknown."""
        assert self.agreement is not None
        done = self.agreement.executions * self.model.steps_per_execution
        steps = self.params.get("steps")
        # Its last execution may be made for more than there are.
        return None if steps is None else max(steps - done, 0)

    def batches_to_epoch_end(self) -> int | None:
        """To the end of this epoch, or of the next, if this one is over.

        None if nobody knows, as in an elastic `fit`, or if ranks do not meet there.
        """
        if not self._has_peers() or self.sections.steps() is not None:
            return None
        steps: int | None = self.params.get("steps")
        return steps if self.epoch_is_over else self._steps_left()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Something may have begun to train alone later."""
        self._end_of_noting()
        for optimizer in meeting_optimizers(self.model):
            optimizer.log.watch(False)
        self.sections.run(self._compare_at_the_end)
        tasks, self._last_tasks = self._last_tasks, []
        for task in tasks:
            task()

    def _compare_at_the_end(self) -> None:
        if not self._has_peers():
            return
        if not self._ends_apart:
            # A callback may have trained since.
            for optimizer in meeting_optimizers(self.model):
                optimizer.meet()
        if self.epochs > 1:
            self._make_one_model("at the end of fit()")

    def _make_one_model(self, when: str | None) -> None:
        """Gives the ranks one state of layers; compares trained weights at times."""
        process_set = self._process_set
        state, trained = split_weights(self.model, self.is_local())
        compared = [*state, *(trained if when else ())]
        if not compared:
            return
        digests = all_digests(compared, "fit/weights", process_set)
        averaged = agree_on_state(
            state, digests[:, : len(state)], process_set, is_joined=self._is_joined
        )
        new = [name for name in averaged if name not in self._said]
        self._said.update(new)
        if new and process_set.rank() == 0:
            warn_of_averages(new, is_joined=self._is_joined)
        if when:
            optimizers = internals.optimizers_of(self.model)
            require_equal(
                trained,
                digests[:, len(state) :],
                when,
                process_set,
                following=common_state(optimizers, self.model.weights, self.is_local()),
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """All callbacks have decided whether to stop."""
        if self.sections.run(self._agree_to_stop):
            self.model.stop_training = True

    def _agree_to_stop(self) -> bool:
        if self._has_peers():
            assert self.agreement is not None
            self.agreement.agree_to_stop()
        return bool(self.model.stop_training)

    def is_local(self) -> Callable[[Any], bool]:
        """Says of variables whether each rank has its own value, by intent."""
        of_optimizers = is_local_in(self.model)
        return lambda variable: (
            internals.variable_key(variable) in self._local or of_optimizers(variable)
        )

    def require_all_there(self) -> None:
        """Before something collective: raises if a rank has failed in this call."""
        process_set = process_set_of(self.model)
        if not self._have_met or process_set.size() == 1:
            return
        if process_set.included():
            require_all_there(process_set)

    def _has_peers(self) -> bool:
        return has_peers(self._process_set)


def _length(run: calls.Run) -> float | str | None:
    """How many batches the data have; None if ranks may have different numbers."""
    if is_joined(run.data):
        # To take a batch would be to ask the others, who may have stopped.
        return "as many as the other ranks'"
    return run.batch_count()
