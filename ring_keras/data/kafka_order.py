"""Binds a pass over messages of Kafka to the steps of the model that it trains."""

import dataclasses
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.data.first_rank import of_first_rank
from ring_keras.data.kafka_pass import KafkaPass, read_pass, write_pass
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet
from ring_keras.keras_internals import calls
from ring_keras.ops.data_order import DataOrder, order_on
from ring_keras.training.distributed_models import process_set_of
from ring_keras.training.train_step import DistributedTrainStep
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["KafkaOrder"]

_NAME = "data.shard_kafka"


class KafkaOrder(DataOrder):
    """The order of a rank's batches, the same in each epoch.

    The file of the pass says how many steps the model had taken when it first began.
    So the model's number of steps, which each of its checkpoints has, says which
    messages it has been trained on.

    Args:
        path: The file.
        kept: Its content, the same on all ranks.
        is_bound: Whether a model is trained on it; else it may only be looked at.
        process_set: Who shares the messages.
    """

    def __init__(
        self, path: Path, kept: KafkaPass, is_bound: bool, process_set: ProcessSet
    ) -> None:
        super().__init__(f"the messages of {path}", counts_passes=False)
        self._path = path
        self._kept = kept
        self._is_bound = is_bound
        self._ranks = process_set
        # The callbacks of the `fit` that has begun.
        self._fit: Callable[[], Any] = lambda: None

    def begin(self, data: Any, model: keras.Model, done: int, epochs: int) -> int:
        """A `fit` begins; collective.

        Args:
            data: Those of the `fit`.
            model: The one that is trained.
            done: How many steps it has taken, the same on all ranks.
            epochs: How many the `fit` is to have, counted from the first start of all.

        Returns:
            How many steps the model had taken when the first of them began.

        Raises:
            ValueError: If these data are not in this order, or the model has not been
                trained on what comes before in it.
            RankMismatchError: If that is so on some ranks.
            RingKerasError: If the file cannot be written.
        """

        def look() -> tuple[None, None]:
            self._require_fit(data, model, done)
            return None, None

        gather_outcomes(_NAME, look, self._ranks)
        self._kept = KafkaPass.decode(
            of_first_rank(
                _NAME, lambda: self._begun(done, epochs).encode(), self._ranks
            )
        )
        assert self._kept.first_step is not None
        callbacks = calls.calling_callback_list()
        assert callbacks is not None
        self._fit = weakref.ref(callbacks)  # One that raises says nothing.
        return self._kept.first_step

    def end(self) -> None:
        """The `fit` that has begun is over."""
        self._fit = lambda: None

    def set_epoch(self, epoch: int) -> None:
        """Said by each `fit` with a callback of ours, before it reads."""
        fit = self._fit()
        if fit is None or fit is not calls.calling_callback_list():
            raise ValueError(self._unbegun())

    def require_begun(self) -> None:
        """For who is about to read.

        Raises:
            RingKerasError: If a model could be trained on what is read, and `Resume`
                would not know.
        """
        if self._is_bound and self._fit() is None:
            raise RingKerasError(f"[RK520] {self._unbegun()}")

    def _unbegun(self) -> str:
        if not self._is_bound:
            return (
                f"ring_keras.{_NAME}: {self.what} were to be looked at alone. "
                "To train on them, give shard_kafka() a `resume`, and fit() the same "
                "one among its callbacks."
            )
        return (
            f"ring_keras.{_NAME}: {self.what} are read, and the Resume that "
            "shard_kafka() was given is not in a fit() with them. List it in fit()'s "
            "callbacks; resume=None is for looking at messages and for evaluation. "
            "A model without keras.Input looks at a batch before fit() begins: build "
            "it."
        )

    def _require_fit(self, data: Any, model: keras.Model, done: int) -> None:
        """Refuses one in which messages would be trained on at other steps."""
        self._require_itself_in(data)
        if any(
            optimizer.gradient_accumulation_steps
            for optimizer in internals.innermost_optimizers(model)
        ):
            raise ValueError(
                f"ring_keras.{_NAME}: {self.what} cannot be trained on with "
                "gradient_accumulation_steps: what has been accumulated is in no "
                "backup. Take a larger batch_size."
            )
        if process_set_of(model).ranks != self._ranks.ranks:
            raise ValueError(
                f"ring_keras.{_NAME}: {self.what} are shared by ranks "
                f"{self._ranks.ranks}, and the model is trained by ranks "
                f"{process_set_of(model).ranks}."
            )
        step = DistributedTrainStep.of(model)
        if step is not None and step.failed_at == done:
            raise ValueError(
                f"ring_keras.{_NAME}: step {done} of this model has failed, and nobody "
                "knows how much of it was done. Restore a backup; or start the job "
                "again, which does so."
            )

    def _require_itself_in(self, data: Any) -> None:
        for source in internals.upstream(data):
            if order_on(source) is self:
                return
            if not internals.keeps_batches(source):
                break
        raise ValueError(
            f"ring_keras.{_NAME}: its Resume is in a fit() that has not {self.what}, "
            "each batch at its place. Give fit() what shard_kafka() returns, or what "
            "map(), prefetch() and with_options() make of that, not with "
            f"deterministic=False. Received: {data}"
        )

    def _begun(self, done: int, epochs: int) -> KafkaPass:
        """On the first rank."""
        kept = self._kept
        if kept.first_step is None:
            if kept.after is not None:
                self._require_trained_before(self._path.parent / kept.after, done)
            kept = dataclasses.replace(kept, first_step=done, epochs=max(epochs, 1))
        assert kept.first_step is not None
        last = kept.first_step + epochs * kept.steps
        if not kept.first_step <= done <= last:
            raise ValueError(
                f"the model has taken {done} steps, and steps {kept.first_step} to "
                f"{last} are those of {epochs} epochs with the messages of "
                f"{self._path}. Its backup is from before or after them, or of another "
                "training. Restore the one that was made while it was trained on them; "
                "or, to train another model, name another file `offsets`."
            )
        kept = dataclasses.replace(kept, epochs=max(epochs, kept.epochs))
        if kept != self._kept:
            write_pass(self._path, kept)
        return kept

    def _require_trained_before(self, path: Path, done: int) -> None:
        """Refuses a model that is not at the end of a whole pass over another file's.

        Args:
            path: That file.
            done: How many steps the model has taken.
        """
        before = read_pass(path)
        if before.first_step is None:
            raise ValueError(
                f"{self._path} follows {path}, whose messages nothing has been trained "
                "on. Train on them first."
            )
        ours = {piece[:2]: piece.first for piece in self._kept.offsets}
        if any(ours[place] != end for place, end in before.ends().items()):
            raise ValueError(f"{path} is not the file that {self._path} was to follow.")
        ends = [
            before.first_step + epoch * before.steps
            for epoch in range(1, before.epochs + 1)
        ]
        if done not in ends:
            raise ValueError(
                f"{self._path} follows {path}, whose messages a model has been trained "
                f"on that has taken {' or '.join(map(str, ends))} steps. This one has "
                f"taken {done}: finish its training there, or restore the model that "
                "was saved at its end."
            )
