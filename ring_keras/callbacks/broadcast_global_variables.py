"""Starts every rank from the same state."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.callbacks.shared_files import warn_of_shared_files
from ring_keras.job.process_set import has_peers
from ring_keras.job.topology import rank
from ring_keras.keras_internals import calls
from ring_keras.keras_internals.building import create_variables
from ring_keras.ops.broadcast_variables import broadcast_variables
from ring_keras.optimizers import common_start
from ring_keras.optimizers.common_variables import common_accumulators, common_variables
from ring_keras.optimizers.hooking import shards_state
from ring_keras.optimizers.meeting_hook import meeting_optimizers
from ring_keras.optimizers.sharded_state import (
    require_parts_of_one_state,
    sharded_steps,
)
from ring_keras.states.begun_accumulation import keep_own_accumulated
from ring_keras.states.common_layers import agree_on_layers
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit, Moment
from ring_keras.training.distributed_models import is_local_in, process_set_of
from ring_keras.values.objects import broadcast_object

__all__ = ["BroadcastGlobalVariables"]


class BroadcastGlobalVariables(keras.callbacks.Callback):
    """Copies one rank's weights and optimizer state to all, before step 1.

    Variables that a model creates at its first batch are created before the broadcast,
    so the first step, too, runs with equal weights. The broadcast treats these cases
    separately:

    - Layers that compute with constants derived from their variables, such as
      `Normalization`, derive them again. Vocabularies and bin boundaries must be the
      same on all ranks.
    - The model's random generators must draw different numbers on each rank. If their
      seeds are the same, all ranks but the first get other seeds.
    - Gradients that a rank has accumulated for its next update stay its own.

    It also prepares the rest of a common start:

    - An optimizer that is not distributed yet, such as a loaded model's, becomes
      distributed.
    - All ranks begin with the root's epoch, also if another callback restored it, such
      as `keras.callbacks.BackupAndRestore`, wherever that is in the list.
    - A warning names files that several ranks are about to write.
    - Ranks that would run different numbers of steps, or that have different
      callbacks, raise an error instead of waiting for each other: at once, or where the
      first rank ends if the number of steps is unknown. All callbacks of this package
      that communicate check this.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[ring.callbacks.BroadcastGlobalVariables(root_rank=1)])

    Args:
        root_rank: The rank whose state all ranks take.
        local_variables: Variables that stay as they are on each rank. Those of the
            optimizers' `local_layers` stay as they are, too.
    """

    ranks_meet_in = ("fit",)
    begins_alike = True

    def __init__(
        self, root_rank: int = 0, *, local_variables: Iterable[Any] = ()
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.local_keys = {internals.variable_key(v) for v in local_variables}
        """Of the `local_variables`."""
        self._fit: DistributedFit | None = None
        # What this rank has trained alone before `fit`, by the optimizer's name.
        self._unmet: dict[str, list[Any]] = {}

    @property
    def is_plain(self) -> bool:
        """Whether all ranks take all variables, from rank 0."""
        return self.root_rank == 0 and not self.local_keys

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Hooks the model, and prepares the broadcast for the first step."""
        attach(self.model, adopt_optimizers=True)
        self._unmet = {
            one.name: list(self.model.trainable_variables)
            for one in meeting_optimizers(self.model)
            if one.is_apart
        }
        callbacks = calls.calling_callback_list()
        fit = DistributedFit.begin(self)
        self._fit = fit
        if callbacks is None or fit is None:
            self._begin([])
        else:
            fit.leave_local(self.local_keys)
            fit.when(
                Moment.ALL_HAVE_BEGUN, self, lambda: self._begin(callbacks.callbacks)
            )

    def _begin(self, callbacks: list[keras.callbacks.Callback]) -> None:
        process_set = process_set_of(self.model)
        if not has_peers(process_set):
            return
        warn_of_shared_files(callbacks, self.model, process_set)
        epoch = broadcast_object(
            internals.initial_epoch(self.model),
            self.root_rank,
            name="fit/initial_epoch",
            process_set=process_set,
        )
        internals.set_initial_epoch(self.model, epoch)
        # Another callback may have had a new train function made since.
        _, function = attach(self.model)
        function.before_next_call = self._broadcast

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Where `fit` had no step to take, as after a restored last one."""
        function: Any = internals.train_function(self.model)
        pending = getattr(function, "before_next_call", None)
        if pending is not None and pending == self._broadcast:
            function.before_next_call = self._fit = None
            optimizer = self.model.optimizer
            # The root's may be built, by what it has restored; a model may have none.
            if optimizer is not None and not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            DistributedFit.calling_sections().require_all_there()
            self._broadcast(None)

    def _broadcast(self, iterator: Any) -> None:
        element_spec = getattr(iterator, "element_spec", None)
        if element_spec is not None:
            with common_start.left_to_caller():
                create_variables(self.model, element_spec)
        process_set = process_set_of(self.model)
        is_local = self._is_local()
        if shards_state(self.model) and any(map(is_local, self.model.weights)):
            raise ValueError(
                "[RK336] "
                "BroadcastGlobalVariables(local_variables=...) does not work with an "
                "optimizer with shard_state=True, for now: all ranks take each "
                "variable from the rank that updates it. Leave out one of them."
            )
        if self._fit is not None:
            # A rank's first batch may not fit the model.
            self._fit.sections.require_all_there()
            self._fit.ranks_take_ones_state()
        keep_own_accumulated(
            self.model,
            process_set.position_of(self.root_rank),
            "fit/accumulated",
            process_set,
            common=common_accumulators(internals.optimizers_of(self.model)),
        )
        before = internals.constants(self.model)
        variables = common_variables(self.model, is_local)
        sharded = sharded_steps(internals.optimizers_of(self.model))
        with self._dropped_work_told():
            broadcast_variables(variables, self.root_rank, process_set=process_set)
        if sharded:  # On all ranks, which have the same variables in common.
            require_parts_of_one_state(sharded, "start", process_set)
        common_start.set_started([*variables, *self.model.weights], process_set)
        if agree_on_layers(
            self.model,
            is_local,
            "fit/layers",
            process_set,
            are_new=internals.constants(self.model) != before,
        ):
            # What is traced goes on with the old constants.
            attach(self.model, retrace=True)
            self.model.test_function = self.model.predict_function = None
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
                    self.root_rank,
                    rank(),
                    name,
                )

    def _is_local(self) -> Callable[[Any], bool]:
        of_optimizers = is_local_in(self.model)
        return lambda variable: (
            internals.variable_key(variable) in self.local_keys
            or of_optimizers(variable)
        )
