"""Lets one rank alone run a callback."""

import contextlib
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

import keras

from ring_keras.callbacks.fit_side import fit_side
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import global_process_set
from ring_keras.job.topology import rank
from ring_keras.values.barrier import barrier
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["RootOnly"]

_HOOKS = {name for name in dir(keras.callbacks.Callback) if name.startswith("on_")}


class RootOnly(keras.callbacks.Callback):
    """Lets one rank alone do something, such as writing files.

    `RootOnly(callback)` runs that callback on one rank. Use it for callbacks that
    write, because several ranks that write the same file damage it. When `fit` returns,
    on any rank, the files are complete. If the callback raises, for example on a full
    disk, `fit` raises on all ranks. `fit` with `Distributed` wraps Keras's own
    `ModelCheckpoint`, `OrbaxCheckpoint`, `CSVLogger`, `TensorBoard` and
    `BackupAndRestore` by itself. Do not wrap callbacks that decide, such as
    `EarlyStopping`: they belong on every rank, where `MetricAverage` makes them decide
    alike.

    `RootOnly()` without a callback is a context manager that every rank of the job
    enters. It ends when the root has left it, so the root's files are then complete on
    all ranks:

    ```python
    with ring.callbacks.RootOnly() as is_root:
        if is_root:
            download_and_unpack("data")
    images = load("data")
    ```

    If the root raises an exception in it, all ranks raise one.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> logger = keras.callbacks.CSVLogger("log.csv")
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[ring.callbacks.RootOnly(logger)])
        >>> with ring.callbacks.RootOnly() as is_root:
        ...     if is_root:
        ...         model.save("model.keras")
        >>> loaded = keras.models.load_model("model.keras")  # On any rank.

    Args:
        callback: The callback. On other ranks none of its methods is called.
        root_rank: The rank that runs it.

    Raises:
        RankMismatchError: At the end of the context, on the other ranks, if a rank
            raises within it.
    """

    def __init__(
        self, callback: keras.callbacks.Callback | None = None, root_rank: int = 0
    ) -> None:
        super().__init__()
        self.callback = callback
        self.root_rank = root_rank
        self._runs = rank() == root_rank
        self._context = contextlib.ExitStack()  # Of the `with` that is under way.
        if callback is None:
            return
        for name in _HOOKS - {"on_train_end"}:
            setattr(self, name, self._on_root(getattr(callback, name)))

    def __enter__(self) -> bool:
        """Whether this rank is the root."""
        is_root = rank() == self.root_rank
        if is_root:
            alone = fit_side().one_rank_alone(self._name())
            self._context.enter_context(alone)
        return is_root

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Waits for all ranks."""
        self._context.close()
        if error is not None and not isinstance(error, Exception):
            return  # This process ends, which tells the others.

        def look() -> tuple[None, None]:
            if error is not None:
                raise error
            return None, None

        try:
            gather_outcomes("callbacks.RootOnly", look, global_process_set)
        except RankMismatchError:
            if error is None:
                raise

    def running(self) -> keras.callbacks.Callback | None:
        """The callback, on the rank that runs it."""
        return self.callback if self._runs else None

    def set_params(self, params: dict[str, Any] | None) -> None:
        """Passed on."""
        super().set_params(params)
        if self._runs and self.callback is not None:
            self.callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        """Passed on."""
        super().set_model(model)
        # A call of fit() begins: the ranks may be others than in the last one.
        self._runs = rank() == self.root_rank
        if self.callback is None:
            raise ValueError(
                "ring_keras.callbacks.RootOnly in a list of callbacks takes the one "
                "that it runs. Received: callback=None"
            )
        process_set = fit_side().process_set_of(model)
        if process_set is not global_process_set:  # Else nobody might run it.
            process_set.position_of(self.root_rank)
        if self._runs:
            self.callback.set_model(model)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Passed on; returns on all ranks when the root is through with it."""
        if self._runs and self.callback is not None:
            with fit_side().one_rank_alone(self._name()):
                self.callback.on_train_end(logs)
        fit_side().run_together(self.model, self._wait)

    def _on_root(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook)  # Keras asks whether a hook is its own.
        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._runs:
                return None
            with fit_side().one_rank_alone(self._name()):
                return hook(*args, **kwargs)

        return run

    def _name(self) -> str:
        inside = "" if self.callback is None else type(self.callback).__name__
        return f"{type(self).__name__}({inside})"

    def _wait(self) -> None:
        process_set = fit_side().process_set_of(self.model)
        if process_set.included():
            barrier(name="root_only", process_set=process_set)
