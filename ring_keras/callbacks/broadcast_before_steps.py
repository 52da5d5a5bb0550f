"""The broadcast of one rank's state on TensorFlow, in front of the first step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.callbacks.fit_side import CommonBeginning
from ring_keras.callbacks.shared_files import warn_of_shared_files
from ring_keras.job.process_set import ProcessSet, has_peers
from ring_keras.job.topology import rank
from ring_keras.keras_internals import calls
from ring_keras.keras_internals.building import create_variables
from ring_keras.ops.broadcast_variables import broadcast_variables
from ring_keras.optimizers import common_start
from ring_keras.optimizers.common_variables import common_accumulators, common_variables
from ring_keras.optimizers.hooking import shards_state
from ring_keras.optimizers.meeting_hook import meeting_optimizers
from ring_keras.optimizers.parts_of_one_state import (
    is_divided,
    require_parts_of_one_state,
)
from ring_keras.states.begun_accumulation import keep_own_accumulated
from ring_keras.states.common_layers import agree_on_layers
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit, Moment
from ring_keras.training.distributed_models import is_local_in, process_set_of
from ring_keras.values.objects import allgather_object

__all__ = ["BroadcastBeforeSteps"]


class BroadcastBeforeSteps(CommonBeginning):
    """Hooks the model, and prepares the broadcast for the first step.

    Args:
        callback: Asks for it, in `on_train_begin`.
        root_rank: The rank whose state all take.
        local_keys: Of variables that each rank has its own of.
    """

    def __init__(
        self,
        callback: keras.callbacks.Callback,
        root_rank: int,
        local_keys: set[Any],
    ) -> None:
        self._model = model = callback.model
        self._root_rank = root_rank
        self._local_keys = local_keys
        attach(model, adopt_optimizers=True)
        # What this rank has trained alone before `fit`, by the optimizer's name.
        self._unmet: dict[str, list[Any]] = {
            one.name: list(model.trainable_variables)
            for one in meeting_optimizers(model)
            if one.is_apart
        }
        callbacks = calls.calling_callback_list()
        self._fit = fit = DistributedFit.begin(callback)
        if callbacks is None or fit is None:
            self._begin([])
        else:
            fit.leave_local(local_keys)
            fit.when(
                Moment.ALL_HAVE_BEGUN,
                callback,
                lambda: self._begin(callbacks.callbacks),
            )

    def _begin(self, callbacks: list[keras.callbacks.Callback]) -> None:
        process_set = process_set_of(self._model)
        if not has_peers(process_set):
            return
        warn_of_shared_files(callbacks, self._model, process_set)
        apart = meeting_optimizers(self._model)
        were_set = [one.weights_were_set() for one in apart]
        mine = internals.initial_epoch(self._model), self._steps(), were_set
        everyones = allgather_object(mine, name="fit/begin", process_set=process_set)
        root = process_set.position_of(self._root_rank)
        self._tell_of_steps_lost([one[1] for one in everyones], root, process_set)
        internals.set_initial_epoch(self._model, everyones[root][0])
        for optimizer, was_set in zip(apart, everyones[root][2], strict=True):
            if was_set and optimizer.built:
                # They are no change since the ranks met, which a `fit` has left.
                optimizer.begin_window()
        # Another callback may have had a new train function made since.
        _, function = attach(self._model)
        function.before_next_call = self._broadcast

    def _steps(self) -> int:
        """Of the model's training; none that DiLoCo's ranks have taken apart."""
        return internals.steps_done_of(self._model) or 0

    def _tell_of_steps_lost(
        self, steps: list[int], root: int, process_set: ProcessSet
    ) -> None:
        """Says so where a rank, such as one that has restored, is ahead of the root."""
        most = max(steps)
        if most > steps[root] and process_set.rank() == steps.index(most):
            logging.warning(
                "ring_keras: [RK680] rank %d begins fit() after %d steps of training, "
                "and all ranks take the state of rank %d, which has taken %d: the "
                "others are lost. Load or restore the state on that rank, or give "
                "BroadcastGlobalVariables(root_rank=%d).",
                rank(),
                most,
                self._root_rank,
                steps[root],
                rank(),
            )

    def end(self) -> None:
        """Broadcasts, if there was no step to take, as after a restored last one."""
        function: Any = internals.train_function(self._model)
        pending = getattr(function, "before_next_call", None)
        if pending is not None and pending == self._broadcast:
            function.before_next_call = self._fit = None
            optimizer = self._model.optimizer
            # The root's may be built, by what it has restored; a model may have none.
            if optimizer is not None and not optimizer.built:
                optimizer.build(self._model.trainable_variables)
            DistributedFit.calling_sections().require_all_there()
            self._broadcast(None)

    def _broadcast(self, iterator: Any) -> None:
        element_spec = getattr(iterator, "element_spec", None)
        if element_spec is not None:
            with common_start.left_to_caller():
                create_variables(self._model, element_spec)
        process_set = process_set_of(self._model)
        is_local = self._is_local()
        if shards_state(self._model) and self._shares_local():
            raise ValueError(
                "[RK336] "
                "BroadcastGlobalVariables(local_variables=...) does not work with an "
                "optimizer with shard_state=True, for now: all ranks take each "
                "variable from the rank that updates it. Give the layers of these "
                "variables to DistributedOptimizer(local_layers=...), or leave out "
                "one of them."
            )
        if self._fit is not None:
            # A rank's first batch may not fit the model.
            self._fit.sections.require_all_there()
            self._fit.ranks_take_ones_state()
        keep_own_accumulated(
            self._model,
            process_set.position_of(self._root_rank),
            "fit/accumulated",
            process_set,
            common=common_accumulators(internals.optimizers_of(self._model)),
        )
        before = internals.constants(self._model)
        variables = common_variables(self._model, is_local)
        optimizers = internals.optimizers_of(self._model)
        with self._dropped_work_told():
            broadcast_variables(variables, self._root_rank, process_set=process_set)
        if is_divided(optimizers):  # On all: they have the same variables in common.
            require_parts_of_one_state(optimizers, "start", process_set)
        common_start.set_started([*variables, *self._model.weights], process_set)
        if agree_on_layers(
            self._model,
            is_local,
            "fit/layers",
            process_set,
            are_new=internals.constants(self._model) != before,
        ):
            # What is traced goes on with the old constants.
            attach(self._model, retrace=True)
            self._model.test_function = self._model.predict_function = None
        fit, self._fit = self._fit, None
        if fit is not None:
            fit.ranks_are_alike()

    @contextlib.contextmanager
    def _dropped_work_told(self) -> Iterator[None]:
        """Says so where others' weights take the place of what has not met."""
        unmet, self._unmet = self._unmet, {}
        before = {
            name: [np.array(variable) for variable in variables]
            for name, variables in unmet.items()
        }
        yield
        for name, variables in unmet.items():
            if not all(map(np.array_equal, variables, before[name])):
                logging.warning(
                    "ring_keras: [RK666] fit() begins with rank %d's weights. What "
                    "rank %d has trained since the ranks met last is lost. Call meet() "
                    "of optimizer '%s' on all ranks before fit() to keep it.",
                    self._root_rank,
                    rank(),
                    name,
                )

    def _shares_local(self) -> bool:
        """Whether a variable that is to be local is not so to the optimizers."""
        of_optimizers = is_local_in(self._model)
        return any(
            internals.variable_key(variable) in self._local_keys
            and not of_optimizers(variable)
            for variable in self._model.weights
        )

    def _is_local(self) -> Callable[[Any], bool]:
        of_optimizers = is_local_in(self._model)
        return lambda variable: (
            internals.variable_key(variable) in self._local_keys
            or of_optimizers(variable)
        )
