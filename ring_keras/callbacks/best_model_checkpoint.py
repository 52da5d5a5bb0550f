"""Saves the best model, once for all ranks."""

from collections.abc import Callable
from typing import Any

import keras

from ring_keras.callbacks.fit_side import fit_side
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import has_peers
from ring_keras.training.noted_saves import noted_saves
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["BestModelCheckpoint"]


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """A `ModelCheckpoint` with `save_best_only=True` that one rank writes.

    Give it to every rank. The metrics of all ranks decide which model is the best, if
    `MetricAverage` is in the list. The first of the ranks that train together saves it.
    When `fit` returns, on any rank, the file is complete, and `best` is the writer's.
    With `shard_state=True` the others give it their parts of the optimizer's state.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> best = ring.callbacks.BestModelCheckpoint("loss", filepath="best.keras")
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[best])
        >>> model = keras.models.load_model("best.keras")  # On any rank.

    Args:
        monitor: As for `keras.callbacks.ModelCheckpoint`. So are the other arguments.
        verbose: 1 to say when a model is saved.
        save_weights_only: Whether to leave out the architecture.
        mode: "auto", "min" or "max".
        save_freq: "epoch", or a number of batches. Between epochs, metrics are
            those of the writing rank alone.
        filepath: Where to save; ends in ".keras", or in ".weights.h5" with
            `save_weights_only`. May be set as an attribute later, before `fit`.
    """

    saves_on_first_rank = True

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: str | None = None,
    ) -> None:
        if str(monitor).endswith((".keras", ".h5")):
            raise ValueError(
                "The first argument of BestModelCheckpoint is `monitor`, the name of "
                "a metric. Write BestModelCheckpoint(filepath=...). "
                f"Received: monitor={monitor!r}"
            )
        self._suffix = ".weights.h5" if save_weights_only else ".keras"
        # Keras wants a path at once; the name of none is asked for in `fit`.
        super().__init__(
            filepath or f"unset{self._suffix}",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = filepath
        self.best: float | None = None
        # Of a save on this rank; raised when the others can hear of it.
        self._failure: Exception | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Looks whether there is a path to save to."""
        self._failure = None
        if self.filepath is None or not str(self.filepath).endswith(self._suffix):
            raise ValueError(
                f"BestModelCheckpoint saves to a path that ends in '{self._suffix}'; "
                "set its attribute `filepath` before fit(). "
                f"Received: filepath={self.filepath!r}"
            )
        self.filepath = str(self.filepath)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Saves, on the rank that writes."""
        if self.save_freq != "epoch":
            self._save(super().on_train_batch_end, batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves, on the rank that writes; the others learn what was best."""
        self._save(super().on_epoch_end, epoch, logs)
        self._agree()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits for the rank that writes, and learns from it what was best."""
        self._agree()

    def _save(self, hook: Callable[..., None], *args: Any) -> None:
        if self._failure is not None:
            return

        def decide() -> None:
            with noted_saves(self.model):
                hook(*args)

        side = fit_side()
        writer = side.process_set_of(self.model).ranks[0]
        self._failure = side.save_if_due(self.model, writer, decide)

    def _agree(self) -> None:
        """Any rank may have to write from now on; one that cannot says so to all."""
        self.best = fit_side().run_together(self.model, self._best_of_all)

    def _best_of_all(self) -> float | None:
        process_set = fit_side().process_set_of(self.model)
        of_keras: Any = self.best  # A number as Keras logged it, or None.
        best: float | None = None if of_keras is None else float(of_keras)
        failure, self._failure = self._failure, None

        def look() -> tuple[None, float | None]:
            if failure is not None:
                raise failure
            return None, best

        if not has_peers(process_set):
            return look()[1]
        try:
            _, values = gather_outcomes(
                "callbacks.BestModelCheckpoint", look, process_set
            )
        except RankMismatchError:
            if failure is None:
                raise
            raise failure from None
        return None if values[0] is None else float(values[0])
