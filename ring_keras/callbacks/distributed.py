"""All that a `fit` on several ranks needs, in one callback."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from ring_keras import callbacks as others
from ring_keras.callbacks.broadcast_global_variables import BroadcastGlobalVariables
from ring_keras.callbacks.fit_side import fit_side
from ring_keras.callbacks.metric_average import MetricAverage

if TYPE_CHECKING:
    from ring_keras.callbacks.elastic import Elastic
    from ring_keras.callbacks.tensorboard import TensorBoard

__all__ = ["Distributed", "any_says"]


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
    adopts_optimizers = True

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
        fit_side().prepare_fits()
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
        if not any_says(everyone, "begins_alike"):
            parts.insert(0, BroadcastGlobalVariables(root_rank))
        if not any(isinstance(one, MetricAverage) for one in everyone):
            parts.append(self.metrics)
        return parts

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """What it adds is in the list by now."""
        fit_side().require_prepared(self)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Has Keras call what comes into the list in this thread.

        It calls lists whose callbacks do nothing with batches from another one.
        """

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """`evaluate` reports of all ranks' data; in a `fit` another one sees to it."""
        fit_side().report_evaluation(self, in_fit=False)


def any_says(callbacks: Iterable[keras.callbacks.Callback], what: str) -> bool:
    """Whether one of ours says this of itself, whose file need not be loaded else."""
    return any(getattr(callback, what, False) for callback in callbacks)
