"""Has one call of `fit` go on when ranks are lost, or come."""

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.elastic.backup_of_steps import BackupOfSteps
from ring_keras.elastic.callback_states import CallbackStates
from ring_keras.elastic.epoch_data import EpochData
from ring_keras.elastic.fit_news import Backup, encodable, require_same
from ring_keras.elastic.fit_state import FitState
from ring_keras.errors import (
    CommunicationError,
    PeerLostError,
    RankMismatchError,
    RingKerasError,
    code_of,
    from_tensorflow,
)
from ring_keras.job.job import current_job
from ring_keras.job.topology import rank, size
from ring_keras.lifecycle.elastic_launcher import is_late, note_state, others_wait
from ring_keras.lifecycle.membership import init, shutdown
from ring_keras.training.attachment import attach
from ring_keras.training.calls_under_way import calls_under_way
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.sections import OthersWait, Sections
from ring_keras.values.objects import broadcast_object

__all__ = ["ElasticSections"]

_Result = TypeVar("_Result")

# Where a section is in a `fit`: epoch, part of the epoch, number in that part.
_Address = tuple[int, int, int]
_BEGINS, _STEPS, _ENDS = range(3)
# Where an epoch's steps end: before callbacks validate, or see the end of the epoch.
_STEPS_END = (_ENDS, 1)
_NOT_BEGUN: _Address = (-2, 0, 0)
_BEGUN: _Address = (-1, 0, 0)
_PASSED_BY: _Address = (sys.maxsize, 0, 0)

# How many calls of `fit` with such sections this process has begun: a process that
# comes later begins with the first, while the others may be in another one.
_fits = itertools.count()


class _PassedByError(Exception):
    """The others are in a later call of `fit`."""


class ElasticSections(Sections):
    """Begins a section anew, with other ranks, where it was interrupted.

    Before each section a rank keeps a copy of its variables. When one is lost, the
    others go back to that, meet in the next generation, and find the section that any
    of them has ended last. Who has not is given its result. Who has ended it gives
    its state, as it is before the next section, to all. Then all begin that one.

    A rank that has come later lets the sections pass that the others have ended, and
    takes the state once more where it meets them, as callbacks may have changed it
    on the way.

    Args:
        model: What is trained.
        fit: The call.
        data: What it is trained on.
        description: Of all data, which must be the same on all ranks.
        callbacks: The call's.
        rescale: Gets the ranks' number before and after a change; may change the
            learning rate.
        backup: Keeps the state when too few ranks are left.
    """

    def __init__(
        self,
        model: keras.Model,
        fit: DistributedFit,
        data: EpochData,
        description: tuple[str, ...],
        callbacks: keras.callbacks.CallbackList,
        rescale: Callable[[int, int], None],
        backup: Backup | None,
    ) -> None:
        super().__init__()
        # Where this raises, a section begins anew.
        self._ask_others = fit.require_all_there
        self._model = model
        self._fit = fit
        self._data = data
        self._description = list(description)
        self._callbacks = callbacks
        self._states: CallbackStates | None = None
        self._rescale = rescale
        self._state = FitState(model)
        self._backup = BackupOfSteps(backup, self._state)
        self._fit_number = next(_fits)
        self._is_late = is_late()
        # That of the ranks which the learning rate is for.
        self._size = size()
        self._epoch = 0
        self._number = 0
        # Of an epoch that goes on when it begins: what of it is done.
        self._places: dict[int, tuple[int, int]] = {}
        # The last section that this rank has ended, or was given; and what they gave.
        self._done = _NOT_BEGUN
        self._has_begun = False
        self._results: dict[int, Any] = {}
        # Done before the next section, which is that of the others.
        self._landing: Callable[[], None] | None = None
        self._was_over = False
        # Whether a section goes on from one call of `_do` to the next.
        self._is_within = False
        self._has_all_variables = False
        # Whether what is traced is of variables that are gone.
        self._is_stale = False

    def others_wait(self) -> bool:
        """Whether this rank knows of processes that wait to join."""
        return others_wait()

    def state_was_of(self, size_before: int) -> None:
        """Its learning rate is that of so many ranks; sums are each rank's again."""
        self._state.parts.note_loaded()
        self._rescale(size_before, size())
        self._state.take_own_sums()

    def steps(self) -> int:
        """How many an epoch has with the ranks that there are."""
        return self._data.steps()

    def place(self) -> dict[str, Any] | None:
        """How much of the epoch's data is done; None: within an update."""
        if self._is_within:
            return None
        return self._data.place()

    def goes_on_from(self, epoch: int, place: Mapping[str, Any]) -> bool:
        """Whether the place is one of these sections; it need not be of these ranks."""
        if "items" not in place:
            return False
        self._data.require_place_in(epoch, place)
        self._places[epoch] = place["items"], place["executions"]
        return True

    def begin(self, section: Callable[[], None]) -> None:
        """Meets the others, who may be in the middle of training."""
        self._states = CallbackStates(self._callbacks.callbacks)
        self._state.save()
        while not self._has_begun:
            try:
                if rank() == 0 and self._done == _NOT_BEGUN and not self._is_late:
                    self._restore_backup()
                self._meet()
                if self._done == _NOT_BEGUN:
                    self._places.clear()
                    section()
                    self._state.parts.require_one_state()
                    self._state.parts.commit()
                    self._done = _BEGUN
                self._has_begun = True
                for call in calls_under_way()[-1:]:
                    call.is_elastic = True
            except _PassedByError:
                return
            except Exception as error:
                self._state.restore()
                self._join_anew(error)

    def note_end(self) -> None:
        """The call ends."""
        if self._states is not None:
            self._states.note_changes()

    def begin_epoch(self, epoch: int, section: Callable[[], None]) -> None:
        """Divides the data of the epoch, unless that has happened."""
        self._epoch, self._number = epoch, 0
        if self._done >= (epoch, _BEGINS, 0):  # The others are in it.
            self._fit.epoch_is_over = self._was_over
            return
        self._results.clear()
        self._data.divide(*self._places.pop(epoch, (0, 0)))

        def attempt() -> None:
            self._ask_others()
            section()

        self._do((epoch, _BEGINS, 0), attempt)

    def execute(self, section: Callable[[Any], _Result], iterator: Any) -> _Result:
        """One execution of steps, on this rank's part of the epoch."""
        address = (self._epoch, _STEPS, self._data.executions + 1)
        results: list[_Result] = []

        def attempt() -> None:
            # There may be more ranks than items now.
            if self._data.left():
                results[:] = [section(self._data.iterator)]

        def ends_an_update() -> bool:
            if results and not self._fit.epoch_is_over:
                self._data.note_execution()
            is_end = not self._data.left() or self._fit.epoch_is_over
            return is_end or self._state.is_between_updates()

        if self._do(address, attempt, ends_an_update):
            self._data.keep()
        if results and not self._has_all_variables and not self._is_within:
            self._has_all_variables = True
            self._state.look()
        return results[0] if results else self._model.get_metrics_result()

    def run(
        self, section: Callable[[], _Result], *, meets: bool = False
    ) -> _Result | None:
        """A section after the steps of the epoch."""
        self._number += 1
        address = (self._epoch, _ENDS, self._number)
        results = self._results

        def attempt() -> None:
            if not meets:
                self._ask_others()
            results[address[2]] = section()

        self._do(address, attempt)
        return results.get(address[2])

    def _do(
        self,
        address: _Address,
        attempt: Callable[[], None],
        ends: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Does it with the others, unless they have done it without this rank.

        Args:
            address: The section's.
            attempt: Does it.
            ends: Whether the section ends with that; if not, the next call goes on with
                it, and what fails there begins with the first call's state.

        Returns:
            Whether this rank has brought it to its end.
        """
        if address <= self._done:
            return False
        self._land()
        while True:
            if not self._is_within:
                self._state.save()
                if address[1:] <= _STEPS_END:
                    self._note_for_backup()
            self._was_over = self._fit.epoch_is_over
            try:
                attempt()
                is_within = not ends()
                if not is_within:
                    self._state.parts.commit()
            except Exception as error:
                self._state.restore()
                if not self._has_all_variables:  # Some were made in this attempt.
                    self._model.reset_metrics()
                self._fit.epoch_is_over = self._was_over
                self._is_within = False
                self._meet_anew(error)
                if address <= self._done:
                    return False
                self._land()
            else:
                self._is_within = is_within
                if not is_within:
                    self._done = address
                if address[1:] == _STEPS_END:  # With what the ranks average there.
                    self._state.save()
                    self._note_for_backup()
                return not is_within

    def _land(self) -> None:
        landing, self._landing = self._landing, None
        if landing is not None:
            landing()

    def _meet_anew(self, error: Exception) -> None:
        """Meets the others in the next generation; or raises the error again."""
        while True:
            self._join_anew(error)
            try:
                self._meet()
                return
            except Exception as another:
                self._state.restore()
                error = another

    def _join_anew(self, error: Exception) -> None:
        reason = "others wait to join"
        if isinstance(error, tf.errors.AbortedError):
            _native.raise_from_handler()
        if not isinstance(error, OthersWait):
            ours = from_tensorflow(error)
            if not isinstance(ours, CommunicationError) and code_of(error) != "RK350":
                raise error
            if current_job().has_failed_alone:
                raise RingKerasError(
                    "[RK350] "
                    "ring_keras.callbacks.Elastic: this rank has left a fit() by an "
                    "error, and the others go on without it. Do not catch that error: "
                    "it must end the process, in whose place ringrun --max-np starts "
                    "another one."
                ) from error
            logging.info("ring_keras: %s", ours)
            reason = "goes on without a rank that was lost"
        shutdown(reason)
        try:
            init()
        except PeerLostError:  # There will be no next generation.
            if self._done > _BEGUN:
                self._backup.save()
            raise

    def _meet(self) -> None:
        """Finds out who has come furthest, and takes its state; a collective.

        Raises:
            RankMismatchError: If this rank trains something else.
            PeerLostError: If a rank died or left.
        """
        self._is_stale |= self._state.follow_ranks()
        done, source = self._dones()
        current_job().others_train = False
        current_job().has_failed_alone = False  # All have, and are here.
        is_new = not self._has_begun
        news = broadcast_object(
            self._news(_NOT_BEGUN in done) if rank() == source else None,
            source,
            name="elastic/fit",
        )
        _, function = attach(self._model)
        function.before_next_call = None  # What it would do is done here.
        require_same("data", self._description, news["data"])
        require_same("variables", self._state.described(), news["variables"])
        require_same("optimizers", self._state.optimizers(), news["optimizers"])
        require_same("layers", self._state.layers(), news["layers"])
        have_begun = done[source] != _NOT_BEGUN
        if news["backup"] and done[source][1] == _ENDS and _NOT_BEGUN in done:
            # Who comes in a validation takes a model that is not to be saved.
            self._backup.take_from(source, news["backup"])
        joins = have_begun and self._done == _NOT_BEGUN
        self._is_stale |= self._state.take_from(source, is_new=joins)
        if self._is_stale:
            attach(self._model, retrace=True)
            self._model.test_function = self._model.predict_function = None
            self._is_stale = False
        if have_begun:
            self._state.stay_apart(is_new=joins)
        self._rescale(news["size"], size())
        self._state.set_drawn(news["drawn"])
        self._state.parts.commit()
        self._state.save()
        self._size = size()
        note_state()
        self._done = done[source]
        if self._done != _NOT_BEGUN:
            self._go_to(news, is_new=is_new)

    def _restore_backup(self) -> None:
        """As if this rank had come so far: the others take it from here."""
        place = self._backup.restore()
        if place is None:
            return
        self._data.require_place_in(place["epoch"], place)
        self._size, self._epoch = place["size"], place["epoch"]
        self._data.divide(place["items"], place["executions"])
        self._done = (place["epoch"], _STEPS, place["executions"])
        self._state.save()

    def _note_for_backup(self) -> None:
        place = {"size": self._size, "epoch": self._epoch, **self._data.place()}
        self._backup.note(place)

    def _dones(self) -> tuple[list[_Address], int]:
        """What each rank has ended, of all that are in this call; who is ahead.

        Of those that have ended the same, it is one that has met the others since.
        """
        while True:
            number = self._state.parts.number
            own = np.array([[self._fit_number, *self._done, number]], np.int64)
            rows = _native.allgather(own, "elastic/fit/done").tolist()
            numbers = [row[0] for row in rows]
            if len(set(numbers)) == 1:
                ahead = [row[1:] for row in rows]
                return [(row[1], row[2], row[3]) for row in rows], ahead.index(
                    max(ahead)
                )
            if self._fit_number < max(numbers):
                self._pass_by()

    def _pass_by(self) -> None:
        """Leaves this call, which the others have left behind.

        Raises:
            RankMismatchError: If this process is no later one.
        """
        if not self._is_late:
            raise RankMismatchError(
                "[RK322] "
                f"ring_keras.callbacks.Elastic: rank {rank()} is in another call of "
                "fit() than others. Every rank must make the same number of calls."
            )
        self._done = _PASSED_BY
        internals.set_initial_epoch(self._model, sys.maxsize)
        raise _PassedByError

    def _go_to(self, news: dict[str, Any], *, is_new: bool) -> None:
        """Prepares for the section that the others are about to begin."""
        self._model.test_function = None  # It may have been traced for others.
        self._epoch = news["epoch"]
        self._results = {**self._results, **dict(news["results"])}
        self._was_over = self._fit.epoch_is_over = news["over"]
        self._fit.set_order(self._epoch)
        self._data.divide(news["items"], news["executions"])
        if self._done == _BEGUN:
            self._places[self._epoch] = news["items"], news["executions"]
        if is_new:
            self._callbacks.params["steps"] = news["steps"]
            internals.set_initial_epoch(self._model, self._epoch)

        def land() -> None:
            self._state.restore_common()
            if is_new:
                assert self._states is not None
                self._states.take(news["callbacks"])
                self._fit.epochs = news["epochs"]
                self._model.stop_training = False
            self._fit.ranks_have_changed()

        self._landing = land

    def _news(self, some_are_new: bool) -> dict[str, Any]:
        """What others must know of this rank, which has come furthest."""
        has_begun = self._done != _NOT_BEGUN
        assert self._states is not None
        return {
            "data": self._description,
            "variables": self._state.described(),
            "optimizers": self._state.optimizers(),
            "layers": self._state.layers(),
            "size": self._size,
            "backup": self._backup.place,
            "epoch": self._epoch,
            "items": self._data.items(),
            "executions": self._data.executions,
            "over": self._was_over,
            "results": list(encodable(self._results).items()),
            "drawn": self._state.drawn(),
            "epochs": self._fit.epochs,
            "steps": self._callbacks.params.get("steps"),
            "callbacks": self._states.values() if has_begun and some_are_new else {},
        }
