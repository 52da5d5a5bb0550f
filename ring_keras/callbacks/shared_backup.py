"""`BackupAndRestore` where the ranks divide an optimizer's state."""

import functools
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.callbacks.saves_with_parts import save_with_parts
from ring_keras.optimizers.sharded_files import give_loaded, loading_for_all
from ring_keras.training.distributed_fit import DistributedFit, Moment, outside_of_fit
from ring_keras.training.distributed_models import process_set_of
from ring_keras.values.objects import broadcast_object

__all__ = ["SharedBackup"]


class SharedBackup(keras.callbacks.Callback):
    """Has all ranks take part in what one rank saves, and in what it restores.

    One rank runs Keras's callback. The others count with it when a save is due, and
    give it their parts of the state.

    Args:
        callback: One of Keras's own, the same on all ranks.
        root_rank: The rank that writes and reads.
    """

    def __init__(
        self, callback: keras.callbacks.BackupAndRestore, root_rank: int
    ) -> None:
        super().__init__()
        self.callback = callback
        self.root_rank = root_rank
        self._loaded: dict[int, list[Any]] = {}

    def set_params(self, params: dict[str, Any] | None) -> None:
        """Passed on."""
        super().set_params(params)
        self.callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        """Passed on."""
        super().set_model(model)
        self.callback.set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores on the root; the others get their parts when all have begun."""
        fit = DistributedFit.begin(self)
        if fit is None:
            raise outside_of_fit(self)
        fit.when(Moment.ALL_HAVE_BEGUN, self, self._give)
        internals.replace(self.callback, internals.SAVE_BACKUP, self._save)
        # Also where it fails: the next call may be of another model.
        fit.when_call_is_over(
            lambda: internals.restore(self.callback, internals.SAVE_BACKUP)
        )
        self._loaded = {}
        if self._is_root():
            with loading_for_all() as self._loaded:
                self.callback.on_train_begin(logs)

    def _give(self) -> None:
        loaded, self._loaded = self._loaded, {}
        model, process_set = self.model, process_set_of(self.model)
        optimizer = model.optimizer
        # Keras's callback has built the root's, where it has restored something.
        is_built = broadcast_object(
            optimizer is not None and optimizer.built,
            self.root_rank,
            name="shared_backup/built",
            process_set=process_set,
        )
        if is_built and not optimizer.built:
            optimizer.build(model.trainable_variables)
        optimizers = internals.optimizers_of(model)
        give_loaded(optimizers, loaded, self.root_rank, process_set)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Saves, if that is due."""
        self.callback.on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """The same."""
        self.callback.on_epoch_end(epoch, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Removes the backup."""
        if self._is_root():
            self.callback.on_train_end(logs)

    def _save(self) -> None:
        """In place of the callback's own; collective."""
        save = functools.partial(type(self.callback)._save_model, self.callback)
        save_with_parts(
            self.model,
            process_set_of(self.model),
            save if self._is_root() else None,
        )

    def _is_root(self) -> bool:
        process_set = process_set_of(self.model)
        return process_set.rank() == process_set.position_of(self.root_rank)
