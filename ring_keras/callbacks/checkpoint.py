"""Saves checkpoints of which each rank writes a part, while training goes on."""

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as WriteTimeoutError
from pathlib import Path
from typing import Any, Literal

import keras
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.callbacks.background_write import BackgroundWrite, wait_for_all_writes
from ring_keras.callbacks.backup_files import require_built
from ring_keras.callbacks.checkpoint_files import CheckpointFiles, CheckpointName
from ring_keras.callbacks.checkpoint_parts import PartWriter
from ring_keras.callbacks.checkpoint_reading import newest_whole, whole_checkpoint
from ring_keras.callbacks.checkpoint_state import ModelState, refuse_ranks_apart
from ring_keras.callbacks.saved_averages import refuse_saved_averages
from ring_keras.errors import RankMismatchError, RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import generation
from ring_keras.keras_internals import calls
from ring_keras.optimizers.common_variables import own_accumulators
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit, Moment, outside_of_fit
from ring_keras.training.distributed_models import process_set_of
from ring_keras.training.saved_place import SavedPlace
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["Checkpoint"]

_NAME = "callbacks.Checkpoint"

# Tokens of calls of `fit` that have ended well in this process. What a program makes of
# its model afterwards is meant: another training, or another fold.
_ended: set[str] = set()


class Checkpoint(keras.callbacks.Callback):
    """Saves model and optimizer while training goes on; each rank writes a part.

    Between two steps each rank copies its part in memory: its share of what all ranks
    have the same of, and what it alone has, such as its part of a state that is divided
    (`shard_state=True`). A thread writes that to the directory, which all ranks see:

    ```python
    resume = ring.data.Resume()
    train = ring.data.shard(dataset, seed=1, resume=resume).batch(32)
    model.fit(train, epochs=9, callbacks=[
        ring.callbacks.Checkpoint("/shared/checkpoints", every=500),
        resume,
    ])
    ```

    The next start continues from the newest complete checkpoint, with any number of
    ranks. List the callback before `ring.data.Resume`, which finds the epoch and the
    step in it; without that, `fit` begins with the epoch in which it was made. `ring
    checkpoint DIRECTORY --into model.keras` makes a file of it for
    `keras.models.load_model`.

    - A checkpoint is complete when the parts of all ranks, with their checksums, are
      there. Whatever dies, and whenever, the earlier one stays as it was.
    - If a rank cannot write its part, for example on a full disk, it logs an error, the
      first rank says so at the end of the epoch, and training goes on.
    - One part is written at a time: if the last one is not done when the next is due,
      training waits for it. So does the end of `fit`.
    - With as many ranks as before, each rank also gets back what it has its own of:
      random generators, moving statistics, accumulated gradients. So training
      continues with the bits that it would have had.
    - Not saved is the state of other callbacks, of `compression=powersgd`, and of the
      random generators that Keras and TensorFlow use without a seed. List `Checkpoint`
      after callbacks that change the model or its optimizer at the end of an epoch.
    - Ranks that train apart (`sync_every`) and `local_layers` are refused.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> checkpoint = ring.callbacks.Checkpoint("checkpoints", every=2)
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0, callbacks=[checkpoint])

    Args:
        directory: A directory that is used for nothing else, and that all ranks see, or
            a URL that `fsspec` knows, such as "s3://bucket/checkpoints".
        every: A number of steps, as the optimizer counts them, or "epoch".
        keep: How many complete checkpoints are kept; earlier ones are removed.
        restore: Whether `fit` begins with the newest complete checkpoint, if that has
            as many steps as the model or more, and is of no `fit` that has ended well
            in this process.

    Raises:
        ValueError: If an argument is none of those.
    """

    ranks_meet_in = ("fit",)
    says_place = True

    def __init__(
        self,
        directory: str | Path,
        *,
        every: int | Literal["epoch"] = "epoch",
        keep: int = 2,
        restore: bool = True,
    ) -> None:
        super().__init__()
        is_number = isinstance(every, int) and not isinstance(every, bool)
        if every != "epoch" and not (is_number and every > 0):
            raise ValueError(
                "`every` of Checkpoint must be a number of steps above 0, or 'epoch'. "
                f"Received: every={every!r}"
            )
        if not isinstance(keep, int) or keep < 1:
            raise ValueError(
                "`keep` of Checkpoint must be the number of checkpoints that are kept, "
                f"1 or more. Received: keep={keep!r}"
            )
        self.every = every
        self.keep = keep
        self.restore = restore
        self._files = CheckpointFiles(directory)
        # Of one call of `fit`. Plain values are what a rank that comes later takes from
        # the others (`Elastic`), so what is a rank's own must be none.
        self._fit: DistributedFit | None = None
        self._run: list[Any] = []  # Number and token.
        self._saved_steps = 0
        self._epoch = 0
        self._begun = 0  # How many of its steps have begun.
        self._optimizers: list[keras.optimizers.Optimizer] = []
        self._start = _Start()
        self._parts: PartWriter | None = None
        self._write = BackgroundWrite("checkpoint")
        # What is written once it is known that the epoch has another step.
        self._copied: Callable[[], None] | None = None
        self._failures = _Failures()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores a checkpoint on the first rank, from which the others take it."""
        attach(self.model, adopt_optimizers=True)
        fit = DistributedFit.begin(self)
        if fit is None:
            raise outside_of_fit(self)
        self._fit = fit
        self._optimizers = internals.training_optimizers(self.model)
        self._run, self._saved_steps = [], 0
        self._parts = None
        self._failures = _Failures()
        self._write.forget()
        self._copied = None
        self._start = _Start()
        fit.when(Moment.ALL_HAVE_BEGUN, self, self._begin)
        fit.when(Moment.RANKS_ARE_ALIKE, self, self._go_on)
        fit.when(Moment.RANKS_HAVE_CHANGED, self, self._divide)
        fit.when(Moment.STEPS_END, self, self._tell)
        try:
            wait_for_all_writes()
            require_built(self.model)
            refuse_ranks_apart(self.model)
            if process_set_of(self.model).rank() == 0:
                self._restore_newest()
        except Exception as error:  # Raised when all ranks can hear of it.
            self._start.failure = error

    def loses_passes(self, callbacks: list[keras.callbacks.Callback]) -> bool:
        """Whether a checkpoint lacks what a tape has added up over several passes."""
        return True

    def _restore_newest(self) -> None:
        """The first rank begins with the newest checkpoint, if it is to."""
        assert self._fit is not None
        self._start.searched_in = generation()
        self._start.name, self._start.own = None, []
        self._fit.restored = None
        if not self.restore:
            return
        with newest_whole(
            self._files, least_steps=self._steps(), ended=_ended
        ) as whole:
            if whole is not None:
                self._restore(whole)
                size = whole.name.size
                self._fit.restored = SavedPlace.of_record(whole.record, size)

    def _begin(self) -> None:
        """All ranks follow the first; collective."""
        process_set = process_set_of(self.model)
        _, everyones = gather_outcomes(_NAME, self._look, process_set)
        for rank, (*theirs, _) in zip(process_set.ranks, everyones, strict=True):
            if theirs != everyones[0][:-1]:
                raise RankMismatchError(
                    "[RK516] "
                    "ring_keras.callbacks.Checkpoint: `every`, `keep` and `restore` "
                    f"are {everyones[0][:-1]} on rank {process_set.ranks[0]}, and "
                    f"{theirs} on rank {rank}, so that no checkpoint would be "
                    "complete. Give every rank the same."
                )
        run, token, name = everyones[0][-1]
        self._run = [run, token]
        if name is not None:
            steps = [theirs[-1] for theirs in everyones[1:]]
            _refuse_more_steps(CheckpointName(*name), process_set.ranks[1:], steps)

        def follow() -> tuple[None, None]:
            self._files.require_run(token)
            if name is not None and process_set.rank() != 0:
                with whole_checkpoint(self._files, CheckpointName(*name)) as whole:
                    self._restore(whole)
            # `Elastic` has had the first rank's taken for those of all, where they met.
            self._take_own()
            return None, None

        gather_outcomes(_NAME, follow, process_set)
        if self._start.name is not None:
            assert self._fit is not None
            self._fit.sections.state_was_of(self._start.name.size)
        self._saved_steps = self._steps()
        self._set_epoch()

    def _look(self) -> tuple[None, list[Any]]:
        """Whether this rank can take part; on the first one, in what."""
        if self._start.failure is not None:
            raise self._start.failure
        self._refuse_others()
        self._start.is_common = True
        self._divide()
        terms = [self.every, self.keep, self.restore]
        if process_set_of(self.model).rank() != 0:
            self._start.name, self._start.own = None, []
            return None, [*terms, self._steps()]
        # Where a rank was lost since, `Elastic` has changed what was restored; where
        # one is lost from now on, the others begin with the state before.
        if self._start.searched_in != generation():
            self._restore_newest()
        self._start.searched_in = None
        name = self._start.name
        if name is not None and self._steps() != self._start.steps:
            raise RingKerasError(
                "[RK518] "
                f"ring_keras.callbacks.Checkpoint has restored {name}, and another "
                f"callback a state of {self._steps():,} steps over it. List Checkpoint "
                "after that one: it restores only what is newer."
            )
        token = secrets.token_hex(4)
        run = self._files.begin_run(token)
        if name is not None:
            logging.warning(
                "ring_keras: training continues from the checkpoint of %s.", name
            )
        plain = None if name is None else list(vars(name).values())
        return None, [*terms, [run, token, plain]]

    def _refuse_others(self) -> None:
        """Raises if another callback would spoil what this one restores, or saves."""
        callbacks = calls.calling_callback_list()
        assert callbacks is not None
        if sum(isinstance(one, Checkpoint) for one in callbacks.callbacks) > 1:
            raise RingKerasError(
                "[RK516] "
                "ring_keras.callbacks.Checkpoint is in the callbacks of fit() more "
                "than once, and each would restore what it has. List one."
            )
        refuse_saved_averages(self, callbacks.callbacks)

    def _divide(self) -> None:
        """Among the ranks that there are.

        Raises:
            RingKerasError: If this one has come later, and cannot take part.
        """
        assert self._fit is not None
        if not self._start.is_common:
            if self._start.failure is not None:
                raise self._start.failure
            self._files.require_run(self._run[1])
            self._start.is_common = True
        self._parts = PartWriter(self._files, self.model, self._fit.is_local())

    def _restore(self, whole: Any) -> None:
        """Everything from a checkpoint, on this rank."""
        state = ModelState(self.model)
        whole.restore(self.model, state)
        process_set = process_set_of(self.model)
        start = self._start
        start.name, start.steps = whole.name, self._steps()
        start.record = whole.record
        start.own = []
        if whole.name.size == process_set.size():
            own = whole.own_of(process_set.rank())
            start.own = [(state.values[n].variable, own[n]) for n in sorted(own)]
            self._take_own()
        else:
            # Of other ranks: nobody knows whose part of the data they are of.
            optimizers = internals.optimizers_of(self.model)
            internals.clear_accumulators(own_accumulators(optimizers))

    def _take_own(self) -> None:
        """What this rank has its own of."""
        for variable, value in self._start.own:
            variable.assign(value)

    def _go_on(self) -> None:
        """All have taken what one rank had."""
        self._take_own()
        self._start.own = []

    def _set_epoch(self) -> None:
        """Where `fit` begins, unless a callback finds the very step."""
        start = self._start
        if start.name is None:
            return
        callbacks = calls.calling_callback_list()
        assert callbacks is not None
        if any(getattr(one, "finds_step", False) for one in callbacks.callbacks):
            return
        epoch, step = start.record["epoch"], start.record["step_in_epoch"]
        internals.set_initial_epoch(self.model, epoch)
        assert self._fit is not None
        if not step or self._fit.sections.goes_on_from(epoch, start.record):
            return
        if process_set_of(self.model).rank() == 0:
            logging.warning(
                "ring_keras: [RK657] the checkpoint of %s was made after step %d of an "
                "epoch (the first is 0, this one %d), which begins anew: its data are "
                "trained on twice. Without Elastic, ring_keras.data.Resume listed "
                "after Checkpoint continues in it.",
                start.name,
                step,
                epoch,
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes which one it is."""
        self._epoch, self._begun = epoch, 0

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Saves if it is due, when all callbacks are through with the step before."""
        self._begun = batch + self.model.steps_per_execution
        if self.every != "epoch":
            self._save_if_due(self.every, self._epoch, batch)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Writes what was copied before it: the epoch has gone on."""
        task, self._copied = self._copied, None
        if task is not None:
            self._write.begin(task)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """The same: what is due after an epoch's last step is saved here."""
        self._start.own = []  # `Elastic` has no moment in which ranks are made alike.
        every = 1 if self.every == "epoch" else self.every
        if self._copied is not None:  # After the last step, as it turns out.
            self._copied, self._saved_steps, every = None, 0, 1
        self._save_if_due(every, epoch + 1, 0)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits until all ranks have written."""
        if self._fit is None:
            return
        # Half of what the others wait for this rank.
        self._wait(current_job().config.collective_timeout_s / 2)
        self._tell()
        if self._parts is not None:
            self._parts.end(self._run[1], self.keep)
        _ended.update(self._run[1:])
        if self._start.name is not None:
            _ended.add(self._start.name.token)  # It has been gone on with, to the end.
        self._fit = self._parts = None
        self._start = _Start()

    def _save_if_due(self, every: int, epoch: int, step: int) -> None:
        """Returns when this rank's part is copied, if one is due."""
        steps = self._steps()
        if self._parts is None or steps // every <= self._saved_steps // every:
            return  # Or it has come later, and is not where the others are yet.
        assert self._fit is not None
        place = self._fit.sections.place()
        if place is None:
            return  # It is saved after the update.
        steps_per_epoch = self.params.get("steps")
        place = {"steps_per_epoch": steps_per_epoch, **place}
        place |= {"epoch": epoch, "step_in_epoch": step, "cut_at": None}
        if not step:
            place["cut_at"] = self._cut_at(place)
        self._wait()  # What it writes is in the memory that is about to change.
        run, token = self._run
        task = self._parts.copy(run, token, steps, place, self.keep)
        self._saved_steps = steps
        if step and steps_per_epoch is None and "items" not in place:
            self._copied = task  # Of unknown length, the data may have ended.
        else:
            self._write.begin(task)

    def _cut_at(self, place: dict[str, Any]) -> int | None:
        """After how many steps the epoch that ends was cut short; None: it was not."""
        steps, begun = self.params.get("steps") or 0, self._begun
        left = steps - begun
        if "executions" in place:  # Of ranks that were others before, maybe.
            left = place["steps_left"]
            begun = place["executions"] * self.model.steps_per_execution
        return begun if left > 0 else None

    def _wait(self, timeout_s: float | None = None) -> None:
        """Notes why the last part was not written, if it was not."""
        try:
            self._write.wait(timeout_s)
        except WriteTimeoutError:
            self._failures.texts.append(f"still writes after {timeout_s:g} s")
        except Exception as error:
            self._failures.texts.append(str(error).removeprefix("[RK517] "))

    def _tell(self) -> None:
        """The first rank says what has failed on any; collective."""
        fit = self._fit
        assert fit is not None
        if self._write.has_failed():
            self._wait()
        process_set = process_set_of(self.model)
        texts, self._failures.texts = self._failures.texts, []

        def gather() -> list[str]:
            _, everyones = gather_outcomes(_NAME, lambda: (None, texts), process_set)
            return [
                f"rank {rank}: {text}"
                for rank, its in zip(process_set.ranks, everyones, strict=True)
                for text in its
            ]

        told = fit.sections.run(gather)
        if told and process_set.rank() == 0:
            logging.error(
                "ring_keras: [RK517] checkpoints of this fit() are not complete, and "
                "training goes on without them. %s",
                " ".join(told),
            )

    def _steps(self) -> int:
        return max(map(internals.steps_done, self._optimizers), default=0)


def _refuse_more_steps(
    name: CheckpointName, ranks: Sequence[int], steps: Sequence[int]
) -> None:
    """Raises where a rank, not the first, has restored what is newer; on all alike."""
    for rank, its in zip(ranks, steps, strict=True):
        if its > name.steps:
            raise RingKerasError(
                "[RK518] "
                f"the newest checkpoint, of {name}, is older than the state of {its:,} "
                f"steps with which rank {rank} begins, and ring_keras.callbacks."
                "Checkpoint would take that back. Restore that state on the first "
                "rank, which leaves an older checkpoint out, or pass restore=False."
            )


class _Start:
    """With what a call of `fit` begins on this rank."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        # In which membership this rank has looked for a checkpoint, if it was the first
        # by then, and has not told the others since.
        self.searched_in: int | None = None
        # Whether it has begun with the others; not, if it has come later.
        self.is_common = False
        self.name: CheckpointName | None = None
        self.steps = 0
        self.record: dict[str, Any] = {}
        self.own: list[tuple[Any, Any]] = []


class _Failures:
    """Of this rank, of which the others have not heard."""

    def __init__(self) -> None:
        self.texts: list[str] = []
