"""This rank's part of each checkpoint: copied between two steps, and written later."""

from collections.abc import Callable
from typing import Any

import keras
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.callbacks.checkpoint_files import CheckpointFiles, CheckpointName
from ring_keras.callbacks.checkpoint_state import ModelState, Writers
from ring_keras.callbacks.part_copy import PartCopy
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import generation
from ring_keras.monitoring.events import add_checkpoint
from ring_keras.training.distributed_models import process_set_of

__all__ = ["PartWriter"]


class PartWriter:
    """Made anew where the ranks change.

    Args:
        files: Where to.
        model: One that is built, with its optimizers.
        is_local: Whether each rank has its own value of a weight, by intent.

    Raises:
        RingKerasError: If the model cannot be saved so.
    """

    def __init__(
        self,
        files: CheckpointFiles,
        model: keras.Model,
        is_local: Callable[[Any], bool],
    ) -> None:
        process_set = process_set_of(model)
        self._files = files
        self._place, self._size = process_set.rank(), process_set.size()
        self._generation = generation()
        self._last: CheckpointName | None = None
        state = ModelState(model)
        writers = Writers(state, model, is_local, process_set)
        numbers = writers.written_by(self._place)
        archive, problem = b"", ""
        if self._place == 0:
            try:
                archive = internals.archive_without_weights(model)
            except Exception as error:  # Of the model's own code. Weights are saved.
                problem = f"{type(error).__name__}: {error}"
        variables = [state.values[number].variable for number in numbers]
        self._copy = PartCopy(variables, archive)
        self._noted: dict[str, Any] = {
            "values": list(map(list, zip(numbers, self._copy.places, strict=True))),
            "own": writers.own,
            "cut": list(map(list, writers.cut.items())),
        }
        if self._place == 0:
            self._noted |= {
                "model": state.described(),
                "archive": self._copy.tail,
                "no_archive": problem,
            }

    def copy(
        self, run: int, token: str, steps: int, place: dict[str, Any], keep: int
    ) -> Callable[[], None]:
        """Copies what there is now; what was copied before must be written by now.

        Args:
            run: Of this `fit`, as is its token.
            token: See `CheckpointName`.
            steps: How many the model has been trained for.
            place: The epoch that is under way, and how much of it is done.
            keep: How many complete checkpoints stay.

        Returns:
            Writes it, in any thread, and removes old ones.
        """
        name = CheckpointName(run, steps, token, self._generation, self._size)
        content = self._copy.take()
        # A rank begins a part only after it has written, or failed to write, the one
        # before. So where one has copied its part, the others may be about to write
        # theirs of the one before, and of none that is older.
        since, self._last = self._last or name, name
        noted = {**place, **self._noted}

        def write() -> None:
            try:
                path = self._files.write(name, self._place, content, noted)
            finally:  # A full disk must not stay full of the others' parts.
                if self._place == 0:
                    self._remove_old(token, since, keep)
            if self._place == 0:
                add_checkpoint("Checkpoint", path, steps)

        return write

    def end(self, token: str, keep: int) -> None:
        """All ranks have written, or failed to, or still write the last one."""
        if self._place == 0 and self._last is not None:
            self._remove_old(token, self._last, keep)

    def _remove_old(self, token: str, since: CheckpointName, keep: int) -> None:
        try:
            self._files.remove_old(token, since, keep)
        except (OSError, RingKerasError) as error:
            logging.warning(
                "ring_keras: [RK659] older checkpoints are left behind: %s", error
            )
