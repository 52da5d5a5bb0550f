"""Has `fit` go on when ranks are lost, or come."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import keras
import tensorflow as tf
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.callbacks.backup_directory import is_remote
from ring_keras.callbacks.backup_files import BackupFiles, unfiled_values
from ring_keras.callbacks.broadcast_global_variables import BroadcastGlobalVariables
from ring_keras.callbacks.momentum import scale_momentum
from ring_keras.callbacks.sharded_saves import refuse_where_ranks_change
from ring_keras.elastic.elastic_sections import ElasticSections
from ring_keras.elastic.epoch_data import EpochData, divide_anew
from ring_keras.elastic.no_launcher import warn_of_no_launcher
from ring_keras.job.process_set import global_process_set
from ring_keras.job.topology import rank
from ring_keras.keras_internals import calls
from ring_keras.lifecycle.elastic_launcher import is_elastic
from ring_keras.ops.data_order import order_on
from ring_keras.ops.redivision import Redivision, redivision_of
from ring_keras.optimizers.meeting_hook import MeetingHook
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit, outside_of_fit
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["Elastic"]

# What the new learning rate is to the old one, of so many ranks before and after.
Scale = Literal["linear"] | Callable[[int, int], float]

# By name, since some are in rooms that know this one.
_REFUSED = {
    "keras.BackupAndRestore",
    # It takes the epoch from the number of steps, which changes with the ranks'.
    "ring_keras.LearningRateSchedule",
    "ring_keras.Preemption",
    "ring_keras.Resume",
}


class Elastic(keras.callbacks.Callback):
    """Lets a `fit` continue when ranks are lost or join.

    Use it under `ringrun --min-np`, with a dataset from `ring.data.shard`:

    ```python
    train = ring.data.shard(dataset, seed=1).batch(32)
    model.fit(train, epochs=9, callbacks=[
        ring.callbacks.Elastic(),
        ring.callbacks.MetricAverage(),
    ])
    ```

    When a rank is lost, the others keep their processes and their call of `fit`. They
    repeat the interrupted step, and divide the rest of the epoch among themselves. A
    step is done once any remaining rank has applied it. With `--max-np`, ringrun starts
    replacements. They join between two steps, and take over the variables, the
    optimizer's state, the callbacks' state and the position in the data.

    All ranks begin with the same variables, as with `BroadcastGlobalVariables`. In a
    job that is not elastic, this callback does nothing. See docs/elastic.md for its
    limits.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> dataset = tf.data.Dataset.from_tensor_slices((x, y))
        >>> train = ring.data.shard(dataset, seed=1).batch(8)
        >>> callbacks = [ring.callbacks.Elastic(), ring.callbacks.MetricAverage()]
        >>> history = model.fit(train, epochs=2, verbose=0, callbacks=callbacks)

    Args:
        scale: How the learning rate changes with the number of ranks, and so with the
            number of examples in a step. The momentum of `SGD` and `RMSprop` is scaled
            with it, as in `LearningRateWarmup`.

            - None: it does not change.
            - "linear": it is multiplied by the new number of ranks over the old one.
            - A function: it is multiplied by `scale(before, after)`, which must return
              the same value on every rank.
        backup_dir: A directory that is used for nothing else. The model is saved there
            when the job ends because too few ranks are left. The next start continues
            from it, in the middle of the epoch, with any number of ranks. The backup is
            removed when `fit` ends.
    """

    keeps_state = True
    begins_alike = True
    ranks_may_change = True
    counts_every_batch = True

    def __init__(
        self, scale: Scale | None = None, *, backup_dir: str | Path | None = None
    ) -> None:
        super().__init__()
        if scale not in (None, "linear") and not callable(scale):
            raise ValueError(
                "`scale` must be 'linear', None, or a function of the number of ranks "
                f"before and after a change. Received: scale={scale!r}"
            )
        if backup_dir is not None and is_remote(backup_dir):
            raise ValueError(
                "`backup_dir` of Elastic must be a directory of this host, in which "
                f"processes can lock a file. Received: backup_dir={backup_dir!r}"
            )
        self.scale = scale
        self._epoch = 0
        self._files = None if backup_dir is None else BackupFiles(backup_dir)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Prepares the call for a change of its ranks."""
        fit, run = DistributedFit.begin(self), calls.calling_run(self.model)
        callbacks = calls.calling_callback_list()
        if fit is None or run is None or callbacks is None:
            raise outside_of_fit(self)
        if not is_elastic():
            warn_of_no_launcher("callbacks.Elastic")
            return
        attach(self.model, adopt_optimizers=True)
        self._refuse_callbacks(callbacks.callbacks)
        data = self._redivision(run)
        self._refuse_model(data)
        refuse_where_ranks_change(callbacks.callbacks, self.model)
        _refuse_validation(run.validation_data)
        fit.sections = ElasticSections(
            self.model,
            fit,
            EpochData(
                data,
                run.epoch_iterator,
                self.model.steps_per_execution,
                lambda: fit.epoch_is_over,
            ),
            (*data.description, f"batches of {data.batch_size()}"),
            callbacks,
            self._rescale,
            None if self._files is None else _Backup(self.model, self._files),
        )

    def loses_passes(self, callbacks: list[keras.callbacks.Callback]) -> bool:
        """Whether what a tape adds up over several passes is lost with a rank."""
        return is_elastic()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Divides the data of a validation among the ranks that there are."""
        run = calls.calling_run(self.model)
        if run is None or not is_elastic():
            return
        divide_anew(run.epoch_iterator)
        # Some ranks may have passed over them more often than others.
        for source in internals.upstream(internals.dataset_of(run.epoch_iterator)):
            order = order_on(source)
            if order is not None:
                order.set_epoch(self._epoch)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes which one it is."""
        self._epoch = epoch

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Removes the backup."""
        sections = DistributedFit.calling_sections()
        if isinstance(sections, ElasticSections):
            sections.note_end()
        if self._files is not None and is_elastic() and rank() == 0:
            try:
                self._files.clear()
            except OSError as error:
                logging.error("ring_keras: [RK610] backups are left behind: %s", error)

    def _rescale(self, before: int, after: int) -> None:
        if self.scale is None or before == after:
            return
        factor = after / before if self.scale == "linear" else self.scale(before, after)
        for optimizer in internals.innermost_optimizers(self.model):
            variable = optimizer.learning_rate
            variable.assign(float(variable.numpy()) * factor)
            scale_momentum(optimizer, factor)

    def _refuse_callbacks(self, callbacks: list[keras.callbacks.Callback]) -> None:
        for callback in callbacks:
            inside = getattr(callback, "callback", callback)  # Of RootOnly.
            if isinstance(inside, BroadcastGlobalVariables) and not inside.is_plain:
                raise ValueError(
                    "[RK620] "
                    "ring_keras.callbacks.Elastic gives all ranks the same variables, "
                    "at first those of rank 0. Leave out root_rank and "
                    "local_variables of BroadcastGlobalVariables."
                )
            for base in type(inside).__mro__:
                name = f"{base.__module__.split('.')[0]}.{base.__name__}"
                if name in _REFUSED:
                    raise ValueError(
                        "[RK620] "
                        "ring_keras.callbacks.Elastic does not work in one fit() with "
                        f"{base.__name__}, for now. Leave out one of them."
                    )
                if name == "ring_keras.Checkpoint" and self._files is not None:
                    raise ValueError(
                        "[RK620] "
                        "ring_keras.callbacks.Elastic(backup_dir=...) and Checkpoint "
                        "would each restore what it has saved. Leave out backup_dir: "
                        "the next start continues from a checkpoint, too."
                    )
            if self.scale is not None and isinstance(
                inside, keras.callbacks.LearningRateScheduler
            ):
                raise ValueError(
                    "[RK620] "
                    "ring_keras.callbacks.Elastic(scale=...) changes the learning "
                    "rate, and LearningRateScheduler would set it back in the next "
                    "epoch. Leave out scale, and have the schedule return a rate "
                    "times ring_keras.size()."
                )

    def _refuse_model(self, data: Redivision) -> None:
        model = self.model
        optimizers = internals.optimizers_of(model)
        if model.built and model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if not model.built or not all(optimizer.built for optimizer in optimizers):
            raise ValueError(
                "[RK620] "
                "ring_keras.callbacks.Elastic needs a model that is built, with its "
                "optimizers: one that comes later takes their variables. Begin the "
                "model with keras.Input, or call model.build(input_shape) before fit()."
            )
        for optimizer in optimizers:
            hook = OptimizerHook.of(optimizer)
            if hook is None:
                continue
            if isinstance(hook, MeetingHook) and optimizer.apart == "hosts":
                raise ValueError(
                    "[RK620] "
                    "ring_keras.callbacks.Elastic does not work with DiLoCo(apart="
                    "'hosts'), for now. Leave out one of them, or have each rank train "
                    "apart."
                )
            if hook.options.backward_passes_per_step > 1:
                raise ValueError(
                    "[RK620] "
                    "ring_keras.callbacks.Elastic does not work with "
                    "backward_passes_per_step. Give the optimizer "
                    "gradient_accumulation_steps in its place."
                )
            if hook.process_set is not global_process_set:
                raise ValueError(
                    "[RK620] "
                    "ring_keras.callbacks.Elastic is for models that all ranks train. "
                    f"Received: process_set={hook.process_set}"
                )
            if data.remainder == "pad" and hook.op is not ReduceOp.AVERAGE:
                raise ValueError(
                    "[RK620] "
                    "ring_keras.callbacks.Elastic: with remainder='pad' a rank may "
                    "have no example in a step, which only an average leaves out. "
                    "Leave out op of DistributedOptimizer, or give "
                    "ring_keras.data.shard() remainder='drop'. Received: "
                    f"op={hook.op.value}"
                )
            if hook.options.shard_state and self._files is not None:
                raise ValueError(
                    "[RK336] "
                    "ring_keras.callbacks.Elastic(backup_dir=...) does not work with "
                    "an optimizer with shard_state=True: where too few ranks are left, "
                    "each saves alone, and has a part of the state. Leave out "
                    "backup_dir, and add ring_keras.callbacks.Checkpoint."
                )
            if hook.options.local_layers or hook.options.local_variables:
                raise ValueError(
                    "[RK620] "
                    "ring_keras.callbacks.Elastic gives all ranks the same variables, "
                    "and an optimizer has local_layers."
                )
        for optimizer in (
            internals.innermost_optimizers(model) if self.scale is not None else ()
        ):
            if not internals.is_keras_variable(optimizer.learning_rate):
                raise ValueError(
                    "[RK620] "
                    "ring_keras.callbacks.Elastic(scale=...) sets the learning rate, "
                    f"but the optimizer '{optimizer.name}' follows a "
                    "LearningRateSchedule or a callable. Give the optimizer a float, "
                    "or leave out scale."
                )

    def _redivision(self, run: calls.Run) -> Redivision:
        """How the data can be divided anew.

        Raises:
            ValueError: If they cannot.
        """
        dataset = internals.dataset_of(run.epoch_iterator)
        found = redivision_of(dataset)
        problem = ""
        if not internals.has_steps(run.epoch_iterator):
            problem = f"Keras {keras.__version__} goes through epochs in another way"
        elif run.keeps_iterator:
            problem = "steps_per_epoch cuts epochs off"
        elif not isinstance(run.data, tf.data.Dataset) or found is None:
            problem = (
                f"it is {type(run.data).__name__}, which was not divided by it, with a "
                "seed or unshuffled, and a known number of items, or was treated since "
                "with more than map(), batch(), padded_batch(), prefetch() and "
                "with_options()"
            )
        elif found.remainder == "keep":
            problem = "remainder='keep' is not supported, 'drop' and 'pad' are"
        elif dataset.options().deterministic is False:
            problem = "options.deterministic = False gives up the order"
        else:
            try:
                found.batch_size()
                return found
            except ValueError as error:
                problem = str(error)
        raise ValueError(
            "[RK620] "
            "ring_keras.callbacks.Elastic divides what is left of an epoch anew, so it "
            "needs a dataset of ring_keras.data.shard() whose order it knows: "
            f"{problem}."
        )


def _refuse_validation(data: Any) -> None:
    """Raises if a lost rank's part of them would be missing from then on."""
    if redivision_of(data) is not None:
        return
    if any(
        redivision_of(source) is not None or order_on(source) is not None
        for source in internals.upstream(data)
    ):
        raise ValueError(
            "[RK620] "
            "ring_keras.callbacks.Elastic divides validation_data anew when the ranks "
            "change, so it needs a tf.data.Dataset of ring_keras.data.shard() that was "
            "treated since with no more than map(), batch(), padded_batch(), "
            "prefetch() and with_options(): cache() belongs before shard(). Or give "
            "every rank all of the data."
        )


@contextlib.contextmanager
def _sigterm_held_off() -> Iterator[None]:
    """A SIGTERM that comes in it acts at its end, if nothing kills the process before.

    ringrun sends one to each rank of a job that ends, and waits for `--grace-period`.
    """
    is_main = threading.current_thread() is threading.main_thread()
    # One that was not set from Python could not be set again.
    if not is_main or signal.getsignal(signal.SIGTERM) is None:
        yield
        return
    came: list[int] = []
    earlier = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
        if came:
            os.kill(os.getpid(), signal.SIGTERM)


class _Backup:
    """Keeps the model in `Preemption`'s format, and its place beside it."""

    def __init__(self, model: keras.Model, files: BackupFiles) -> None:
        self._model = model
        self._files = files

    def save(self, place: dict[str, Any]) -> None:
        steps = internals.steps_done_of(self._model) or 0
        try:
            with _sigterm_held_off():
                weights = internals.weights_file(self._model)
                noted = {**place, **unfiled_values(self._model)}
                self._files.save_if_newest(weights, steps, noted)
        except Exception as error:  # The job ends by another one.
            logging.error("ring_keras: [RK610] Elastic cannot save: %s", error)
        else:
            logging.warning("ring_keras: training is saved, after %d steps.", steps)

    def restore(self) -> dict[str, Any] | None:
        noted = self._files.restore(self._model)
        if noted is not None and "items" not in noted:
            raise ValueError(
                "[RK620] "
                "ring_keras.callbacks.Elastic: the backup is one of Preemption, and "
                "does not say how much of the data was trained on. Give each a "
                "backup_dir of its own."
            )
        return noted
