"""Starts every rank from the same state."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.callbacks.shared_files import warn_of_shared_files
from ring_keras.errors import RankMismatchError
from ring_keras.keras_internals import calls
from ring_keras.keras_internals.building import create_variables
from ring_keras.ops.broadcast_variables import broadcast_variables
from ring_keras.optimizers import common_start
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.end_of_data import EndOfData
from ring_keras.training.train_step import is_local, process_set_of

__all__ = ["BroadcastGlobalVariables"]

_UNKNOWN = -1


class BroadcastGlobalVariables(keras.callbacks.Callback):
    """Copies one rank's weights and optimizer state to all, before step 1.

    Variables that exist only once the first batch is seen are created first,
    so the first step runs with equal weights too. State of random generators
    stays each rank's own: dropout masks differ between ranks that were seeded
    differently, or not at all.

    It also sees to the rest of a common start: an optimizer that
    `DistributedOptimizer` has not seen, a loaded model's for instance, is made
    a distributed one; all ranks begin with the root's epoch, wherever in the list
    the callback stands that restored it, such as
    `keras.callbacks.BackupAndRestore`; ranks that are about to run different
    numbers of steps are told so instead of waiting for each other, at once, or
    where the first ends if nobody knows its number; and files that several ranks
    are about to write are named in a warning.

    Args:
        root_rank: The rank whose state all take.
        local_variables: Variables that stay as they are on each rank; those of
            the optimizers' `local_layers` do so too.
    """

    def __init__(
        self, root_rank: int = 0, *, local_variables: Iterable[Any] = ()
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local = {internals.variable_key(v) for v in local_variables}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Hooks the model, and prepares the broadcast for the first step."""
        attach(self.model, adopt_optimizers=True)
        callbacks = calls.calling_callback_list()
        fit = DistributedFit.begin()
        if callbacks is None or fit is None:
            self._begin([])
        else:
            fit.leave_local(self._local)
            fit.when_all_have_begun(self, lambda: self._begin(callbacks.callbacks))

    def _begin(self, callbacks: list[keras.callbacks.Callback]) -> None:
        process_set = process_set_of(self.model)
        if process_set.size() == 1 or not process_set.included():
            return
        warn_of_shared_files(callbacks, process_set)
        root = process_set.position_of(self.root_rank)
        plans = self._gather(
            "fit",
            _or_unknown(internals.initial_epoch(self.model)),
            _or_unknown(self.params.get("epochs")),
            _or_unknown(self.params.get("steps")),
        )
        self._require_equal(plans[:, 1], "epochs", "epochs of fit()")
        self._require_equal(
            plans[:, 2],
            "steps per epoch",
            "data, with ring_keras.data.shard() or steps_per_epoch",
        )
        if (plans[:, 2] == _UNKNOWN).any():
            self._watch_end_of_data()
        epoch = int(plans[root, 0])
        internals.set_initial_epoch(self.model, None if epoch == _UNKNOWN else epoch)
        # Another callback may have had a new train function made since.
        _, function = attach(self.model)
        function.before_next_call = self._broadcast

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Checks that all ranks are in the same epoch."""
        _, function = attach(self.model)
        if function.end_of_data is not None:
            function.end_of_data.begin_epoch()
        process_set = process_set_of(self.model)
        if process_set.size() == 1 or not process_set.included():
            return
        self._require_equal(
            self._gather("epoch", epoch)[:, 0], "epoch", "initial_epoch of fit()"
        )

    def _watch_end_of_data(self) -> None:
        """For generators, whose ends may come at different steps."""
        step, function = attach(self.model)
        if function.end_of_data is None and not self.model.jit_compile:
            function.end_of_data = EndOfData(process_set_of(self.model))
            step.prologues.append(function.end_of_data.before_step)
            attach(self.model, retrace=True)

    def _broadcast(self, iterator: Any) -> None:
        element_spec = getattr(iterator, "element_spec", None)
        if element_spec is not None:
            with common_start.left_to_caller():
                create_variables(self.model, element_spec)
        # Not model.variables, which has the random generators' state.
        variables = [v for v in self.model.weights if not self._is_local(v)]
        for optimizer in internals.optimizers_of(self.model):
            variables += optimizer.variables
        unique = {id(variable): variable for variable in variables}
        broadcast_variables(
            list(unique.values()),
            self.root_rank,
            process_set=process_set_of(self.model),
        )
        common_start.set_started([*unique.values(), *self.model.weights])

    def _is_local(self, variable: keras.Variable) -> bool:
        key = internals.variable_key(variable)
        return key in self._local or is_local(self.model, variable)

    def _gather(self, name: str, *numbers: int) -> np.ndarray[Any, Any]:
        """One row per rank."""
        process_set = process_set_of(self.model)
        row = np.array([numbers], np.int64)
        return _native.allgather(row, name, process_set.communicator_id())

    def _require_equal(
        self, values: np.ndarray[Any, Any], what: str, remedy: str
    ) -> None:
        known = [
            (rank, int(value))
            for rank, value in zip(
                process_set_of(self.model).ranks, values, strict=True
            )
            if value != _UNKNOWN
        ]
        for rank, value in known:
            if value != known[0][1]:
                raise RankMismatchError(
                    f"fit(): {what} differ across ranks: rank {known[0][0]} has "
                    f"{known[0][1]}, rank {rank} has {value}. Give every rank the "
                    f"same {remedy}."
                )


def _or_unknown(number: int | None) -> int:
    return _UNKNOWN if number is None else int(number)
