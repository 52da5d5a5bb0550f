"""All that a `fit` on several ranks needs, in one callback."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from ring_keras import callbacks as others
from ring_keras import keras_internals as internals
from ring_keras.callbacks.broadcast_global_variables import BroadcastGlobalVariables
from ring_keras.callbacks.fit_calls import agree_on_calls, insert_callback
from ring_keras.callbacks.metric_average import MetricAverage
from ring_keras.callbacks.sharded_saves import refuse_savers_of_one_rank
from ring_keras.job.job import current_job
from ring_keras.job.process_set import has_peers
from ring_keras.job.topology import is_initialized, size
from ring_keras.keras_internals import calls
from ring_keras.training.attachment import attach
from ring_keras.training.data_orders import OrdersOfOneRank
from ring_keras.training.distributed_fit import DistributedFit
from ring_keras.training.distributed_models import is_distributed, process_set_of
from ring_keras.training.failures import every_fit_meets
from ring_keras.training.own_pace import takes_own_pace

if TYPE_CHECKING:
    from ring_keras.callbacks.elastic import Elastic
    from ring_keras.callbacks.tensorboard import TensorBoard

__all__ = ["Distributed", "prepare_fits"]


class Distributed(keras.callbacks.Callback):
    """Makes `fit` train on several ranks as it would on one.

    If the optimizer is a `ring_keras.DistributedOptimizer`, `fit` adds this callback by
    itself. Pass it yourself to give it arguments, or to make an ordinary optimizer
    distributed, such as that of a loaded model:

    ```python
    model.fit(data, epochs=90, callbacks=[
        ring.callbacks.Distributed(
            base_lr=0.1, warmup_epochs=5, tensorboard="logs"),
        keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    ])
    ```

    It inserts these callbacks into the list after itself, unless you have listed them:

    - `BroadcastGlobalVariables`: all ranks begin with the root's variables and epoch.
    - `MetricAverage`: metrics of epochs and of validation cover the data of all ranks.
      If only some ranks validate, metrics stay each rank's own, and a warning says so.
    - `RootOnly` around each of Keras's callbacks that would write the same file on
      every rank: only the root writes it.
    - The callbacks for the arguments below.
    - If the list has Keras's `TensorBoard`: a callback that adds the ranks' figures to
      its file, as `ring_keras.callbacks.TensorBoard` does. Not with `elastic`.

    The progress bar shows on the first rank only, and all ranks stop after the same
    step. If all ranks read the same data, a warning says so, because every example
    would count as many times as there are ranks.

    `evaluate` with this callback on every rank reports on the data of all ranks.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[ring.callbacks.Distributed(base_lr=0.1, warmup_epochs=1)])
        >>> float(model.optimizer.learning_rate.numpy())  # 2 ranks, twice the rate.
        0.2...

    Args:
        root_rank: The rank whose state all ranks take, and which writes files.
            Defaults to the first rank that trains the model.
        base_lr: The learning rate tuned for one rank. Needs `warmup_epochs`. See
            `LearningRateWarmup`.
        warmup_epochs: The number of epochs in which the learning rate grows from
            `base_lr` to `base_lr` times the number of ranks that train the model.
        tensorboard: The `log_dir` of a `ring_keras.callbacks.TensorBoard`, or such a
            callback.
        elastic: True, or an `Elastic` callback: `fit` continues when ranks are lost or
            join. Files and data are then not compared across ranks.

    Raises:
        ValueError: If only one of `base_lr` and `warmup_epochs` is given.
        NotInitializedError: From `fit`, if `ring_keras.init()` has not run.
    """

    ranks_meet_in = ("fit", "evaluate")

    def __init__(
        self,
        root_rank: int | None = None,
        *,
        base_lr: float | None = None,
        warmup_epochs: float | None = None,
        tensorboard: str | Path | TensorBoard | None = None,
        elastic: bool | Elastic = False,
    ) -> None:
        super().__init__()
        prepare_fits()
        if (base_lr is None) != (warmup_epochs is None):
            raise ValueError(
                "ring_keras.callbacks.Distributed takes `base_lr` and `warmup_epochs` "
                f"together. Received: base_lr={base_lr}, warmup_epochs={warmup_epochs}"
            )
        self.root_rank = root_rank
        self._asked_for: list[keras.callbacks.Callback] = []
        # The package loads each of them when it is asked for.
        if base_lr is not None:
            self._asked_for.append(
                others.LearningRateWarmup(base_lr, warmup_epochs=warmup_epochs)
            )
        if tensorboard is not None:
            is_one = isinstance(tensorboard, keras.callbacks.Callback)
            self._asked_for.append(
                tensorboard if is_one else others.TensorBoard(str(tensorboard))
            )
        if elastic:
            is_one = isinstance(elastic, keras.callbacks.Callback)
            self._asked_for.append(elastic if is_one else others.Elastic())
        self.metrics = MetricAverage()
        """The one that it adds."""

    def missing_parts(
        self, present: list[keras.callbacks.Callback], root_rank: int
    ) -> list[keras.callbacks.Callback]:
        """What it adds to these callbacks, itself among them."""
        parts = [one for one in self._asked_for if one not in present]
        everyone = [*present, *parts]
        if not _any_says(everyone, "begins_alike"):
            parts.insert(0, BroadcastGlobalVariables(root_rank))
        if not any(isinstance(one, MetricAverage) for one in everyone):
            parts.append(self.metrics)
        return parts

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Has Keras call what comes into the list in this thread.

        It calls lists whose callbacks do nothing with batches from another one.
        """

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """`evaluate` reports of all ranks' data; in a `fit` another one sees to it."""
        callbacks = calls.calling_callback_list()
        if callbacks is not None and DistributedFit.of(callbacks) is None:
            self.metrics.set_model(self.model)
            self.metrics.on_test_begin(logs)


@functools.cache
def prepare_fits() -> None:
    """From now on, each `fit` that has, or is to have, a distributed optimizer."""
    internals.call_before_callbacks("on_train_begin", _begin_fit)
    internals.postpone_writing(_is_to_be_prepared)
    internals.call_before_callbacks("on_test_begin", _show_progress_once)
    internals.call_before_callbacks("on_predict_begin", _show_progress_once)
    every_fit_meets()


def _is_to_be_prepared(
    callbacks: keras.callbacks.CallbackList, model: keras.Model
) -> bool:
    """Whether it is the list of such a `fit`, in which ranks may write one file."""
    if not is_initialized() or size() == 1 or not calls.is_calling_fit(model):
        return False
    listed = any(isinstance(one, Distributed) for one in callbacks.callbacks)
    return listed or is_distributed(model)


def _begin_fit(callbacks: keras.callbacks.CallbackList) -> None:
    _prepare_fit(callbacks)
    for callback in callbacks.callbacks:
        internals.begin_writing(callback)


def _prepare_fit(callbacks: keras.callbacks.CallbackList) -> None:
    model = callbacks.model
    run = None if model is None else calls.calling_run(model)
    if run is None or not run.trains or run.callbacks is not callbacks:
        return
    distributed = next(
        (one for one in callbacks.callbacks if isinstance(one, Distributed)), None
    )
    if distributed is not None:
        current_job()  # There must be one: each rank would train alone.
    elif not is_initialized() or not is_distributed(model):
        return
    attach(model, adopt_optimizers=True)
    refuse_savers_of_one_rank(callbacks.callbacks, model)
    process_set = process_set_of(model)
    may_change = _any_says(callbacks.callbacks, "ranks_may_change")
    if distributed is None:
        # Others may come, with these callbacks.
        if not has_peers(process_set) and not may_change and not takes_own_pace(model):
            if not any(isinstance(c, OrdersOfOneRank) for c in callbacks.callbacks):
                insert_callback(callbacks, 0, OrdersOfOneRank())
            return
        distributed = Distributed()
        insert_callback(callbacks, len(callbacks.callbacks), distributed)
    root = distributed.root_rank
    root = process_set.ranks[0] if root is None else root
    place = callbacks.callbacks.index(distributed)
    for part in reversed(distributed.missing_parts(callbacks.callbacks, root)):
        insert_callback(callbacks, place + 1, part)
    _show_progress_once(callbacks)
    # Ranks that come later would not ask the others anything here.
    if has_peers(process_set) and not may_change:
        agree_on_calls(callbacks, run, distributed.metrics, root, process_set)


def _show_progress_once(callbacks: keras.callbacks.CallbackList) -> None:
    """On the first rank of those that train the model."""
    model = callbacks.model
    if model is None or not is_initialized() or not is_distributed(model):
        return
    process_set = process_set_of(model)
    if process_set.included() and process_set.rank() != 0:
        internals.remove_progress_bar(callbacks)


def _any_says(callbacks: list[keras.callbacks.Callback], what: str) -> bool:
    """Whether one of ours says this of itself, whose file need not be loaded else."""
    return any(getattr(callback, what, False) for callback in callbacks)
