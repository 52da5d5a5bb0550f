"""Goes on with training in the middle of an epoch."""

from collections.abc import Callable
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.data.kafka_order import KafkaOrder
from ring_keras.data.known_orders import require_known_order
from ring_keras.data.root_place import RootPlace
from ring_keras.data.whole_passes import WholePasses
from ring_keras.keras_internals import calls
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit, Moment
from ring_keras.training.distributed_models import process_set_of
from ring_keras.training.saved_place import SavedPlace

__all__ = ["Resume"]


class Resume(keras.callbacks.Callback):
    """Makes `fit` continue with the step after the last one that was saved.

    It takes the position from the optimizer's step count, so every way to restore model
    and optimizer works: `BackupAndRestore(save_freq=100)`, a `ModelCheckpoint` and
    `load_model`, a `tf.train.Checkpoint`. One of `ring_keras.callbacks.Checkpoint` says
    itself in which step of which epoch it was made. The order of an epoch's data is
    that of the interrupted run:

    ```python
    resume = ring.data.Resume()
    train = ring.data.shard(dataset, seed=1, resume=resume).batch(32)
    model.fit(train, epochs=9, callbacks=[
        keras.callbacks.BackupAndRestore(path, save_freq=100),
        resume,
    ])
    ```

    List it after callbacks that restore state.
    The batches that have been trained on are read and discarded. The metrics of that
    epoch cover only the rest. `epochs` counts from the very first start.

    It needs the number of steps per epoch: the dataset's cardinality, or
    `steps_per_epoch` if that is unknown. An epoch is a whole pass over the data. In a
    loop of your own, call `set_epoch(number)` before iterating, and iterate over
    `dataset.skip(steps)`. With `shard_kafka`, steps count from the model's step when it
    first trained on these messages.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> resume = ring.data.Resume()
        >>> dataset = tf.data.Dataset.from_tensor_slices((x, y))
        >>> train = ring.data.shard(dataset, seed=1, resume=resume).batch(8)
        >>> backup = keras.callbacks.BackupAndRestore("backup", save_freq=1)
        >>> history = model.fit(train, epochs=2, verbose=0, callbacks=[backup, resume])

    Args:
        root_rank: The rank whose state all ranks take. `fit` knows it: that of
            `Distributed` or `BroadcastGlobalVariables`, or else the first rank.
    """

    counts_every_batch = True
    finds_step = True

    def __init__(self, root_rank: int | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.goes_on_by_steps = False
        """Whether this `fit` began where the model's steps end, all epochs being
        equally long."""
        self._listeners: list[Callable[[int], Any]] = []
        self._messages: KafkaOrder | None = None
        # Of this `fit`, and how many steps the model had taken when it began.
        self._root: RootPlace
        self._done = 0
        self._epoch = 0

    def loses_passes(self, callbacks: list[keras.callbacks.Callback]) -> bool:
        """Whether a file may be from the middle of what a tape has added up.

        That is where one of Keras's callbacks saves after so many batches.
        """
        # Of RootOnly.
        inside = [getattr(callback, "callback", callback) for callback in callbacks]
        return any(getattr(one, "save_freq", "epoch") != "epoch" for one in inside)

    def at_epoch(self, listener: Callable[[int], Any]) -> None:
        """Has a function called with the number of each epoch, before it begins."""
        self._listeners.append(listener)

    def bind(self, messages: KafkaOrder) -> None:
        """Has it place models in these messages, and in no other data.

        Raises:
            ValueError: If it does so in others already.
        """
        if self._messages is not None:
            raise ValueError(
                "A ring_keras.data.Resume is for the messages of one shard_kafka(). "
                f"This one has {self._messages.what}: make another."
            )
        self._messages = messages

    def set_epoch(self, epoch: int) -> None:
        """Data that are iterated from now on have the order of this epoch."""
        for listener in self._listeners:
            listener(epoch)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Finds out where training is, and skips to there."""
        fit = DistributedFit.begin(self)
        DistributedFit.calling_sections().require_all_there()
        self._require_known_order()
        passes = WholePasses(
            self.model,
            self.params.get("steps"),
            may_be_endless=self._messages is not None,
        )
        attach(self.model, adopt_optimizers=True, retrace=self._count_steps())
        self._root = RootPlace(self.model, self.root_rank)
        done = self._root.steps()
        saved = self._root.saved(None if fit is None else fit.restored)
        for count in self._counts():
            count.assign(done)  # A file of a run without this callback has 0.
        self._done = done
        since = done if self._messages is None else done - self._begin_messages(done)
        epoch, step = 0, 0
        # A checkpoint between two epochs may be of epochs with other numbers of steps.
        self.goes_on_by_steps = bool(since) and (saved is None or saved.step > 0)
        if since and saved is not None and self._messages is None:
            epoch, step = self._place_of(saved)
        elif since:
            epoch, step = self._place(since)
        self._require_no_other_epoch(epoch)
        if since:
            internals.set_initial_epoch(self.model, epoch)
        elif self._messages is not None:
            internals.set_initial_epoch(self.model, None)  # Of other messages.
        if fit is not None:
            fit.when(Moment.ALL_HAVE_BEGUN, self, self._require_restored_before)
            listed = calls.calling_callback_list()
            assert listed is not None
            if not any(getattr(one, "says_place", False) for one in listed.callbacks):
                fit.when(Moment.FIRST_EXECUTION_IS_DONE, self, self._require_one_update)
            fit.when(Moment.STEPS_END, self, lambda: self._end_steps(passes))
            fit.skip(self._executions(step))

    def _begin_messages(self, done: int) -> int:
        """How many steps the model had taken when it first trained on them."""
        assert self._messages is not None
        self._require_no_other_epoch(0)
        run = calls.calling_run(self.model)
        data = None if run is None else run.data
        return self._messages.begin(data, self.model, done, self.params["epochs"])

    def _executions(self, steps: int) -> int:
        """How many take so many steps."""
        each = self.model.steps_per_execution
        if steps % each:
            raise ValueError(
                "[RK512] "
                f"ring_keras.data.Resume cannot continue after {steps} steps of an "
                f"epoch with steps_per_execution={each}. Use the number with which the "
                "model was compiled when it was saved."
            )
        return int(steps // each)

    def _require_restored_before(self) -> None:
        """Refuses a callback that restores the model behind this one."""
        done = self._root.steps()
        if done != self._done:
            raise ValueError(
                "[RK512] "
                f"The model had taken {self._done} steps when ring_keras.data.Resume "
                f"began, and has taken {done} now. List Resume in fit()'s callbacks "
                "after the one that restores the model."
            )

    def _require_one_update(self) -> None:
        """Refuses a step that counts as several: its number would be another place."""
        optimizers = internals.training_optimizers(self.model)
        steps = min(map(internals.steps_done, optimizers), default=0) - self._done
        if steps > self.model.steps_per_execution:
            raise ValueError(
                "[RK512] "
                "ring_keras.data.Resume reads off the optimizer how many batches a "
                f"model has been trained on, and it has counted {steps} steps where "
                f"fit() has taken {self.model.steps_per_execution}: the model's "
                "train_step() calls its apply() several times. Save by "
                "ring_keras.callbacks.Checkpoint, which says itself where it was made, "
                "or leave Resume out."
            )

    def _require_no_other_epoch(self, epoch: int) -> None:
        """Refuses one that `fit` shall begin with, and that is not the one found."""
        run = calls.calling_run(self.model)
        given = 0 if run is None else run.initial_epoch
        if given not in (0, epoch):
            raise ValueError(
                "[RK512] "
                "ring_keras.data.Resume finds the epoch by itself: leave initial_epoch "
                f"out of fit(). Received: initial_epoch={given}"
            )

    def _require_known_order(self) -> None:
        """Refuses data of which a new process would pass over others at this place."""
        run = calls.calling_run(self.model)
        if run is None or self._messages is not None:  # They see to it themselves.
            return
        if run.shuffles:
            raise ValueError(
                "[RK512] "
                "ring_keras.data.Resume: fit() would shuffle these data by itself, in "
                "an order that a new process does not find again. Pass shuffle=False "
                "to fit(), and a seed to ring_keras.data.shard()."
            )
        require_known_order(run.data)

    def _place_of(self, saved: SavedPlace) -> tuple[int, int]:
        """The epoch and the step of a checkpoint, which says both."""
        if not saved.step:
            return saved.epoch, 0
        steps = self._steps_per_epoch()
        if saved.steps_per_epoch != steps:
            had = (
                f"with {saved.steps_per_epoch} steps in an epoch"
                if saved.steps_per_epoch
                else "which does not say how much of its data is done: ranks had "
                "changed in it (ring_keras.callbacks.Elastic), or nobody knew how many "
                "steps it has"
            )
            raise ValueError(
                "[RK682] "
                "ring_keras.data.Resume cannot continue in epoch "
                f"{saved.epoch} (the first is 0): the checkpoint was made after "
                f"{saved.step} steps of it by {saved.size} ranks, {had}. Here an epoch "
                f"has {steps} steps, on {process_set_of(self.model).size()} ranks. "
                "Start as many ranks as then, with the same data and batch size; or, "
                "if it was made with Elastic, list that in place of Resume, in an "
                "elastic job (ringrun --min-np); or leave Resume out, and the epoch "
                "begins anew."
            )
        return saved.epoch, saved.step

    def _place(self, done: int) -> tuple[int, int]:
        """The epoch in which so many steps end, and how many of them are in it."""
        return divmod(done, self._steps_per_epoch())

    def _steps_per_epoch(self) -> int:
        steps = self.params.get("steps")
        if not steps:
            raise ValueError(
                "[RK512] "
                "ring_keras.data.Resume must know the number of steps per epoch. "
                "Declare it with dataset.apply(tf.data.experimental."
                "assert_cardinality(n)), or, if nobody knows it, pass "
                "steps_per_epoch to fit()."
            )
        return int(steps)

    def _count_steps(self) -> bool:
        """Has each `LossScaleOptimizer` count the steps that it skips, too.

        Returns:
            Whether that is new to the model's step.
        """
        counts = self._counts()
        if not counts:
            return False
        step, _ = attach(self.model, adopt_optimizers=True)
        known = [p.variable for p in step.prologues if isinstance(p, _Count)]
        new = [c for c in counts if all(c is not other for other in known)]
        step.prologues += map(_Count, new)
        return bool(new)

    def _counts(self) -> list[keras.Variable]:
        optimizers = internals.training_optimizers(self.model)
        return [c for c in map(internals.step_count, optimizers) if c is not None]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Tells the data which epoch it is."""
        self._epoch = epoch
        self.set_epoch(epoch)

    def _end_steps(self, passes: WholePasses) -> None:
        """Before anything is reported, or saved."""
        if self._epoch + 1 < self.params["epochs"]:
            passes.end_epoch()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """What is read from now on is not trained on in this `fit`."""
        if self._messages is not None:
            self._messages.end()


class _Count:
    """Part of each step, whether its gradients are finite or not.

    It stays there: what is counted belongs to the optimizer.
    """

    def __init__(self, variable: keras.Variable) -> None:
        self.variable = variable

    def __call__(self) -> None:
        self.variable.assign_add(1)
