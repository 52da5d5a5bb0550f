"""Backups of a model in a directory, of which one that is whole is always there."""

import contextlib
import fcntl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.callbacks.backup_directory import (
    Directory,
    LocalDirectory,
    directory_at,
)
from ring_keras.callbacks.sealed_records import (
    sealed,
    sha256,
    sha256_of_file,
    unsealed,
)
from ring_keras.errors import RingKerasError
from ring_keras.optimizers.common_variables import own_accumulators
from ring_keras.optimizers.meeting_hook import meeting_optimizers

__all__ = ["FIT", "BackupFiles", "BackupId", "require_built", "unfiled_values"]

# In a record: which `fit` has made it.
FIT = "fit"

# In a record: what optimizers have that Keras leaves out of a file of weights.
_UNFILED = "unfiled"
_WEIGHTS = ".weights.h5"
_RECORD = ".json"
# The last one, and the one before in case that it is damaged.
_KEPT = 2
_LOCK = "lock"


class BackupId(NamedTuple):
    """Says of backups of several ranks whether they have been made together.

    Attributes:
        steps: How many the model has been trained for.
        fit: What stands for the `fit` that has made it; None if an earlier ring_keras
            has.
    """

    steps: int
    fit: str | None


class BackupFiles:
    """Pairs of files: weights and the optimizer's state, and what they must be.

    A backup counts once its second file, the record, is there, which has a checksum
    of the first and one of its own. Each appears under its name when it is kept, and
    whole.

    Args:
        directory: A path, a URL or what lies elsewhere, of these files alone.
    """

    def __init__(self, directory: str | Path | Directory) -> None:
        if isinstance(directory, (str, Path)):
            directory = directory_at(directory)
        self._directory = directory

    def save(
        self, weights: memoryview, steps: int, place: Mapping[str, Any] | None = None
    ) -> str:
        """Makes a backup, and then forgets all but the last ones.

        Args:
            weights: As `keras_internals.weights_file` gives them.
            steps: How many the model has been trained for.
            place: What else to note, for `restore`, with `unfiled_values`.

        Returns:
            Where the weights are.

        Raises:
            RingKerasError: If the files cannot be written; it names the path and the
                space that is left there. Earlier backups are still there.
        """
        stem = _stem(steps)
        noted = {**(place or {}), "steps": steps, "sha256": sha256(weights)}
        try:
            self._directory.write(stem + _WEIGHTS, weights)
            self._directory.write(stem + _RECORD, sealed(noted))
        except OSError as error:
            raise RingKerasError(
                "[RK610] "
                f"cannot write the backup {self._directory.path(stem + _WEIGHTS)}: "
                f"{error.strerror or error}. It has {len(weights):,} bytes; "
                f"{self._directory.free_space()}. Earlier backups are as they were."
            ) from error
        try:
            # Newer ones have been passed over: they are damaged.
            stems = [newer for newer in self._newest_first() if newer <= stem]
            self._remove_all_but(stems[:_KEPT])
        except (OSError, RingKerasError) as error:
            logging.warning(
                "ring_keras: [RK610] older backups are left behind: %s", error
            )
        return self._directory.path(stem + _WEIGHTS)

    def save_if_newest(
        self, weights: memoryview, steps: int, place: Mapping[str, Any]
    ) -> None:
        """The same, by processes that do not know of each other.

        Only if there is no whole one of as many steps. In a local directory.

        Raises:
            RingKerasError: See `save`.
            OSError: If there can be no such directory.
        """
        assert isinstance(self._directory, LocalDirectory)
        directory = self._directory.directory
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self._newest_whole() as newest:
                is_newest = newest is None or newest[1]["steps"] < steps
            if is_newest:
                self.save(weights, steps, place)

    def restore(
        self, model: keras.Model, only: BackupId | None = None
    ) -> dict[str, Any] | None:
        """Loads the newest backup that is whole; warns of newer ones that are not.

        Args:
            model: A compiled one, with its weights built.
            only: Another rank's, with which it must have been made; None: it may be
                any.

        Returns:
            What was noted with it; None if there was none.

        Raises:
            RingKerasError: If a remote directory cannot be read, or see
                `require_built`.
        """
        require_built(model)
        with self._newest_whole(only) as newest:
            if newest is None:
                return None
            weights, noted = newest
            model.load_weights(weights)
        unfiled = internals.unfiled_state(internals.optimizers_of(model)).values()
        values = noted.pop(_UNFILED, [])
        if len(values) != len(unfiled):
            logging.warning(
                "ring_keras: the backup was made by an earlier ring_keras, which did "
                "not save what Nadam in a LossScaleOptimizer has of all its steps: it "
                "begins that anew."
            )
            values = []
        for variable, value in zip(unfiled, values, strict=bool(values)):
            variable.assign(value)
        # One rank's, of some steps: no rank has the others' parts. Those that train
        # apart have their own.
        apart = set(map(id, meeting_optimizers(model)))
        optimizers = internals.optimizers_of(model)
        internals.clear_accumulators(
            own_accumulators(one for one in optimizers if id(one) not in apart)
        )
        return noted

    def clear(self) -> None:
        """Removes every backup; nothing else that lies there."""
        self._remove_all_but([])
        for name in (f"unfinished{_WEIGHTS}", f"unfinished{_RECORD}", _LOCK):
            self._directory.remove(name)

    def _newest_first(self) -> list[str]:
        """The names of backups, without their endings."""
        return sorted(self._stems(_RECORD), reverse=True)

    def _stems(self, ending: str) -> list[str]:
        return [
            name.removesuffix(ending)
            for name in self._directory.names()
            if name.startswith("step-") and name.endswith(ending)
        ]

    @contextlib.contextmanager
    def _newest_whole(
        self, only: BackupId | None = None
    ) -> Iterator[tuple[Path, dict[str, Any]] | None]:
        """Its weights, as a file of this host, and what was noted with them."""
        for stem in self._newest_first():
            if only is not None and stem != _stem(only.steps):
                continue
            with contextlib.ExitStack() as stack:
                name = stem + _WEIGHTS
                try:
                    noted = unsealed(self._directory.read(stem + _RECORD))
                    if only is not None and noted.get(FIT) != only.fit:
                        continue
                    weights = stack.enter_context(self._directory.local_copy(name))
                    if sha256_of_file(weights) != noted["sha256"]:
                        raise ValueError("its checksum is another one")
                except (OSError, ValueError) as error:
                    logging.warning(
                        "ring_keras: [RK610] "
                        "the backup %s is damaged, and passed over: %s. An "
                        "earlier one is taken, if there is one.",
                        self._directory.path(name),
                        error,
                    )
                    continue
                yield weights, noted
                return
        yield None

    def _remove_all_but(self, kept: Sequence[str]) -> None:
        """Weights without a record, too, which are no backup."""
        # In this order: what is left of a pair is no backup.
        for ending in (_RECORD, _WEIGHTS):
            for stem in self._stems(ending):
                if stem not in kept:
                    self._directory.remove(stem + ending)


def unfiled_values(model: keras.Model) -> dict[str, Any]:
    """To note with a backup: the part of the state that is in no file of Keras's."""
    unfiled = internals.unfiled_state(internals.optimizers_of(model)).values()
    values = [np.asarray(variable.numpy()).tolist() for variable in unfiled]
    return {_UNFILED: values} if values else {}


def require_built(model: keras.Model) -> None:
    """Builds its optimizer; what else is not built would not take its state.

    Asked before there is a backup, too: one that cannot be restored is of no use.

    Raises:
        RingKerasError: If the model or an optimizer of its own is not built.
    """
    if not model.built:
        raise RingKerasError(
            "[RK334] "
            f"model '{model.name}' is not built, so that a backup could not be "
            "restored. Begin it with keras.Input, or call model.build(input_shape), "
            "before fit()."
        )
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    for optimizer in internals.training_optimizers(model):
        if not optimizer.built:
            raise RingKerasError(
                "[RK334] "
                f"optimizer '{optimizer.name}' of model '{model.name}' has no "
                "variables yet, so a backup's could not be restored. Build the model's "
                "own optimizers before fit(), in compile() for instance: "
                "optimizer.build(variables)."
            )


def _stem(steps: int) -> str:
    return f"step-{steps:012}"
