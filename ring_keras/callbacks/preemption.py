"""Saves and ends when the machine is about to be taken away."""

import os
import signal
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import logging

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.callbacks.backup_files import BackupFiles, BackupId, require_built
from ring_keras.callbacks.backup_writer import BackupWriter
from ring_keras.callbacks.own_backups import (
    clear_all_ranks,
    clear_rank,
    files_of_rank,
)
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import has_peers
from ring_keras.job.topology import rank
from ring_keras.keras_internals import calls
from ring_keras.optimizers.hooking import shards_state
from ring_keras.optimizers.meeting_hook import meeting_optimizers
from ring_keras.optimizers.sharded_files import (
    failed_save_told,
    give_loaded,
    loading_for_all,
)
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit, Moment, outside_of_fit
from ring_keras.training.distributed_models import process_set_of
from ring_keras.training.root_rank import root_of
from ring_keras.values.objects import allgather_object, broadcast_object
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["Preemption"]


class Preemption(keras.callbacks.Callback):
    """Saves a backup when a signal ends `fit`; the next start continues from it.

    A scheduler that needs a machine back sends SIGTERM, or a signal that you have asked
    for, and kills the remaining processes some time later. When any rank gets the
    signal, all ranks end the epoch after the same step, without validation. One of them
    saves the weights and the optimizer's state. Then each process ends with the exit
    code 128 + signal, which is 143 for SIGTERM. The next start restores the backup:

    ```python
    resume = ring.data.Resume()
    train = ring.data.shard(dataset, seed=1, resume=resume).batch(32)
    model.fit(train, epochs=9, callbacks=[
        ring.callbacks.Preemption("/shared/backup"),
        resume,
    ])
    ```

    List it before `ring.data.Resume`, which finds the epoch and the step in the backup.

    - It also saves at the end of each epoch's steps. A signal during validation, or a
      crash, loses nothing of that epoch.
    - A rank that gets the signal during validation waits until the others have it, too,
      or have ended their validation. Then all end.
    - A signal that comes later still, while `fit` ends, has its usual effect on that
      rank alone, after the last callback has ended.
    - When `fit` ends, the backups are removed.
    - A backup is copied in memory and written in the background, to a temporary file
      that is renamed when it is on the disk. The previous backup is kept. If a checksum
      shows that a backup is damaged, the previous one is restored.
    - If a backup cannot be written, for example on a full disk, `fit` ends on all ranks
      with the same RingKerasError: after the step in which this is noticed, or at the
      end.
    - A backup does not hold the state of other callbacks, such as `EarlyStopping`.
    - Where the ranks divide the optimizer's state (`shard_state=True`), all of them
      take part in each save. The next start may have any number of ranks.
    - Ranks that train apart (`sync_every`) do not meet where a signal ends an epoch.
      Each other rank saves a backup of its own, in `backup_dir/rank-<rank>`.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> resume = ring.data.Resume()
        >>> dataset = tf.data.Dataset.from_tensor_slices((x, y))
        >>> train = ring.data.shard(dataset, seed=1, resume=resume).batch(8)
        >>> callbacks = [ring.callbacks.Preemption("backup"), resume]
        >>> history = model.fit(train, epochs=2, verbose=0, callbacks=callbacks)

    Args:
        backup_dir: A directory that is used for nothing else, or a URL that `fsspec`
            knows, such as "s3://bucket/backup". Only the rank that saves uses it. On
            several hosts all must reach it, because the next start may put that rank on
            another host.
        signals: Signals that end training. Slurm sends the one that `--signal` names.
        root_rank: The rank that saves and restores, whose state all ranks take.
            Defaults to that of `Distributed` or `BroadcastGlobalVariables`, or else to
            the first rank that trains the model.

    Raises:
        ValueError: From `fit`, on all ranks, if these name another rank.
    """

    counts_every_batch = True
    restores_for_all = True

    def __init__(
        self,
        backup_dir: str | Path,
        *,
        signals: Sequence[int] = (signal.SIGTERM,),
        root_rank: int | None = None,
    ) -> None:
        super().__init__()
        self._backup_dir = str(backup_dir)
        self._files = BackupFiles(backup_dir)
        self._writer = BackupWriter(self._files)
        self._signals = tuple(signals)
        self.root_rank = root_rank
        # Of one call of `fit`.
        self._root = 0
        self._fit: DistributedFit | None = None
        self._handlers: _Handlers | None = None
        self._failure: Exception | None = None
        self._restored: BackupId | None = None
        # What it has read of a state that the ranks divide.
        self._loaded: dict[int, list[Any]] = {}
        # Whether this rank goes on with a backup of its own; None if ranks have none.
        self._has_own: bool | None = None
        # What this rank has had for itself, until all have the root's variables; None
        # if it has had nothing.
        self._own_states: list[dict[Hashable, Any] | None] = []
        # From the end of an epoch's steps until the ranks have asked each other again.
        self._ranks_will_meet = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores a backup, and listens from now on."""
        attach(self.model, adopt_optimizers=True)
        fit = DistributedFit.begin(self)
        if fit is None:
            raise outside_of_fit(self)
        callbacks = calls.calling_callback_list()
        assert callbacks is not None
        self._root = self._common_root(callbacks.callbacks)
        self._fit = fit
        fit.when(Moment.STEPS_END, self, self._after_steps)
        fit.when(Moment.VALIDATION_ENDS, self, self._meet)
        fit.when(Moment.ALL_HAVE_BEGUN, self, self._require_restored)
        fit.when(Moment.RANKS_TAKE_ONES_STATE, self, self._note_own)
        fit.when(Moment.RANKS_ARE_ALIKE, self, self._go_on)
        fit.stays_apart = self._ends_in_epoch
        self._failure = self._restored = None
        self._loaded = {}
        self._has_own = None
        self._own_states = []
        try:
            require_built(self.model)
            if self._is_root():
                self._writer = BackupWriter(self._files)
                with loading_for_all() as self._loaded:
                    self._restored = self._writer.restore(self.model)
            elif self._saves():
                self._writer = BackupWriter(files_of_rank(self._backup_dir, rank()))
        except Exception as error:  # Raised when all ranks can hear of it.
            self._failure = error
        self._ranks_will_meet = False
        if self._handlers is not None:  # Of a `fit` that raised.
            self._handlers.remove()
        self._handlers = _Handlers(
            self.model, callbacks, self._signals, self._leave_validation
        )

    def loses_passes(self, callbacks: list[keras.callbacks.Callback]) -> bool:
        """Whether the next start goes on where a tape has added up several passes.

        Without `Resume` it begins the epoch anew.
        """
        return any(getattr(one, "finds_step", False) for one in callbacks)

    def _require_restored(self) -> None:
        failure, self._failure = self._failure, None
        if not self._agreed(0 if failure is None else 1):
            if meeting_optimizers(self.model):
                self._restore_own()
            loaded, self._loaded = self._loaded, {}
            if shards_state(self.model):
                give_loaded(
                    internals.optimizers_of(self.model),
                    loaded,
                    self._root,
                    process_set_of(self.model),
                )
            return
        if failure is not None:
            raise failure
        raise RingKerasError(
            "[RK610] "
            f"ring_keras.callbacks.Preemption: rank {self._root} cannot restore "
            "its backup. Its own error says why: if the model is another one now, "
            "give it another backup_dir."
        )

    def _restore_own(self) -> None:
        """What ranks that train apart have each for themselves; collective."""
        found = self._restored and [*self._restored]
        self._writer.fit, found = self._roots((self._writer.fit, found))
        if found is None:
            return
        restored = BackupId(*found)
        has_own = self._is_root()

        def restore() -> None:
            nonlocal has_own
            if not has_own:
                has_own = self._writer.restore(self.model, restored) is not None

        self._raise_on_all(self._attempt(restore), "restore")
        if not has_own:
            logging.warning(
                "ring_keras: [RK656] "
                "Preemption: rank %d has no backup of its own of step %d. It goes on "
                "with what the ranks had in common when they met last.",
                rank(),
                restored.steps,
            )
        apart = {one.apart for one in meeting_optimizers(self.model)}
        if self._agreed(int(not has_own)) and "hosts" in apart:
            has_own = False  # The ranks of a host must stay equal.
        self._has_own = has_own

    def _note_own(self) -> None:
        """Other callbacks have set the learning rate, and scaled momentum by it."""
        has_own, self._has_own = self._has_own, None
        if has_own is None:
            return
        own = {
            internals.variable_key(variable): variable.numpy()
            for one in meeting_optimizers(self.model)
            for variable in [*one.own_variables, *one.variables]
        }
        self._own_states.append(own if has_own else None)

    def _go_on(self) -> None:
        states, self._own_states = self._own_states, []
        for own in states:
            for optimizer in meeting_optimizers(self.model):
                optimizer.go_on_with(own)

    def _ends_in_epoch(self, is_cut: bool) -> bool:
        """Whether a signal is why an epoch is cut short; collective."""
        return bool(self._agreed(self._received() if is_cut else 0))

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """This step is the last one if the backup could not be written."""
        if self._writer.has_failed():
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends all ranks if one had a signal in validation."""
        self._meet()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Removes the backups, unless a signal is why training ends here."""
        handlers, fit = self._handlers, self._fit
        if handlers is None or fit is None:
            return
        self._handlers = self._fit = None
        try:
            fit.sections.require_all_there()
            self._end_training(handlers)
        except BaseException:
            handlers.remove()
            raise
        # A later signal is too late for the others, and must not cut off callbacks.
        fit.when_call_is_over(handlers.pass_on)

    def _end_training(self, handlers: "_Handlers") -> None:
        signal_number = self._agreed(handlers.received)
        error = self._attempt(self._writer.wait)
        if signal_number:
            self._end(signal_number, error)
        self._raise_on_all(error)
        if self._saves():
            try:
                if self._is_root():
                    self._writer.clear()
                    clear_all_ranks(self._backup_dir)
                else:
                    clear_rank(self._backup_dir, rank())
            except (OSError, RingKerasError) as problem:
                logging.error(
                    "ring_keras: [RK610] backups are left behind: %s", problem
                )

    def _after_steps(self) -> None:
        """On every rank, after the same step; those of an epoch are done, or cut."""
        signal_number = self._agreed(self._received())
        if signal_number:
            self._attempt(self._writer.wait)  # Whatever became of it, this one counts.
            error = self._attempt_to_save() or self._attempt(self._writer.wait)
            self._end(signal_number, error)
        self._raise_on_all(self._attempt_to_save())
        self._ranks_will_meet = True

    def _leave_validation(self, signal_number: int) -> None:
        """What validation comes after has been saved."""
        if self._validates():
            self._meet()

    def _meet(self) -> None:
        """Once after each epoch's steps, where all ranks come; collective.

        At a signal in validation; else where it ends, before its metrics are averaged;
        at the latest at the end of the epoch.
        """
        if not self._ranks_will_meet:
            return
        self._ranks_will_meet = False
        assert self._fit is not None
        self._fit.sections.require_all_there()
        signal_number = self._agreed(self._received())
        if signal_number:
            self._end(signal_number, self._attempt(self._writer.wait))

    def _received(self) -> int:
        return self._handlers.received if self._handlers is not None else 0

    def _validates(self) -> bool:
        run = calls.calling_run(self.model)
        return run is not None and not run.trains

    def _agreed(self, value: int) -> int:
        """The highest of the ranks' values; collective."""
        process_set = process_set_of(self.model)
        if process_set.size() == 1 or not process_set.included():
            return value
        return int(
            _native.allreduce(
                np.array([value], np.int64),
                op=ReduceOp.MAX.value,
                name="preemption",
                communicator_id=process_set.communicator_id(),
            )[0]
        )

    def _roots(self, value: Any) -> Any:
        """That of the rank that saves; collective."""
        process_set = process_set_of(self.model)
        if process_set.size() == 1 or not process_set.included():
            return value
        return broadcast_object(
            value, self._root, name="preemption/root", process_set=process_set
        )

    def _end(self, signal_number: int, error: Exception | None) -> None:
        """All ranks together; the error is that of the rank that saves."""
        problem = self._told(error)
        name = signal.Signals(signal_number).name
        if problem:
            logging.error("ring_keras: [RK610] %s, but %s", name, problem)
        elif self._is_root():
            logging.warning("ring_keras: %s: training is saved, and ends here.", name)
        raise SystemExit(128 + signal_number) from error

    def _raise_on_all(self, error: Exception | None, what: str = "save") -> None:
        """The same error, if a rank that saves has one; collective."""
        problem = self._told(error, what)
        if problem:
            raise RingKerasError(f"[RK610] {problem}") from error

    def _told(self, error: Exception | None, what: str = "save") -> str:
        """What became of the ranks that save, if it is an error; collective."""
        problem = ""
        if error is not None:
            ours = isinstance(error, RingKerasError)
            reason = str(error) if ours else f"{type(error).__name__}: {error}"
            reason = reason.removeprefix("[RK610] ")  # It is said in front.
            problem = (
                f"ring_keras.callbacks.Preemption: rank {rank()} cannot {what}: "
                f"{reason}"
            )
        process_set = process_set_of(self.model)
        if process_set.size() == 1 or not process_set.included():
            return problem
        problems = allgather_object(
            problem, name="preemption/error", process_set=process_set
        )
        return next(filter(None, problems), "")

    def _attempt(self, task: Callable[[], None]) -> Exception | None:
        """On the ranks that save alone; its error, of which the others are to hear."""
        if self._saves():
            try:
                task()
            except Exception as error:
                return error
        return None

    def _attempt_to_save(self) -> Exception | None:
        """The same of a save, in which all ranks take part if each has a part."""
        steps = internals.steps_done_of(self.model) or 0
        if not shards_state(self.model):
            return self._attempt(lambda: self._writer.save(self.model, steps))
        error = self._attempt(self._writer.wait)
        try:
            # The others wait in this save, not where errors are told.
            with failed_save_told(process_set_of(self.model), lambda told: None):
                if not self._is_root():
                    internals.run_through_weights_file(self.model)
                    return None
                weights = internals.weights_file(self.model)
        except Exception as problem:
            return problem
        if error is None:
            self._writer.begin(weights, self.model, steps)
        return error

    def _saves(self) -> bool:
        """Ranks that train apart have each something that no other has."""
        return self._is_root() or (
            bool(meeting_optimizers(self.model))
            and process_set_of(self.model).included()
        )

    def _is_root(self) -> bool:
        process_set = process_set_of(self.model)
        if not process_set.included():
            return False
        return process_set.rank() == process_set.position_of(self._root)

    def _common_root(self, callbacks: list[keras.callbacks.Callback]) -> int:
        """The rank whose state all take in this `fit`."""
        process_set = process_set_of(self.model)
        if not has_peers(process_set):
            return process_set.ranks[0]
        root = root_of(callbacks, process_set.ranks)
        if self.root_rank not in (None, root):
            raise ValueError(
                "[RK524] "
                "ring_keras.callbacks.Preemption would restore a backup on rank "
                f"{self.root_rank}, and all ranks of this fit() take weights and state "
                f"of rank {root}. Leave root_rank out of Preemption. Received: "
                f"root_rank={self.root_rank}"
            )
        return root


class _Handlers:
    """Of signals, for as long as one call of `fit` goes on.

    A `fit` that raises says nothing: who is called when it is over puts back what was
    there before, and lets that have the signal.

    Args:
        model: What is trained.
        callbacks: The list by which that call of `fit` is known.
        signals: To be handled.
        at_once: Called with each, before anything else comes of it.
    """

    def __init__(
        self,
        model: keras.Model,
        callbacks: keras.callbacks.CallbackList,
        signals: Sequence[int],
        at_once: Callable[[int], None],
    ) -> None:
        self.received = 0
        self._model = weakref.ref(model)
        self._callbacks = weakref.ref(callbacks)
        self._at_once = weakref.WeakMethod(at_once)
        self._earlier: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            logging.warning(
                "ring_keras: [RK622] "
                "Preemption gets no signals, because fit() is not "
                "called in the main thread."
            )
            return
        for number in signals:
            self._earlier[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        """Puts back what was there before."""
        for number, earlier in self._earlier.items():
            # One that Python has not set cannot be put back by it.
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
        self._earlier.clear()

    def pass_on(self) -> None:
        """Gives what was there before the signal that has come."""
        self.remove()
        if self.received:
            os.kill(os.getpid(), self.received)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        model, callbacks = self._model(), self._callbacks()
        if model is None or callbacks is None or not calls.is_fitting(model, callbacks):
            self.remove()
            os.kill(os.getpid(), number)
            return
        self.received = number
        model.stop_training = True
        at_once = self._at_once()
        if at_once is not None:
            at_once(number)
