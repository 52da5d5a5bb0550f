"""A `fit` whose ranks take different numbers of batches for each that it counts.

In an execution of `fit` a fast rank first trains on *extra* batches, and then, like all
others, on those that count. So all that Keras and the ranks count stays common.
"""

import collections
import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet, has_peers
from ring_keras.keras_internals import calls
from ring_keras.optimizers.extra_batches import OWN
from ring_keras.optimizers.meeting_hook import meeting_optimizers
from ring_keras.training.parts import is_joined
from ring_keras.values.objects import allgather_object

__all__ = ["OwnPace", "refuse_without_fit", "takes_own_pace"]

# Of which the middle one counts: in one of them a host may have stood still, or data
# may have been read ahead while the rank waited for others.
_WINDOWS = 3


def takes_own_pace(model: keras.Model) -> bool:
    """Whether ranks that train this model may take different numbers of batches."""
    return any(optimizer.is_paced for optimizer in meeting_optimizers(model))


def refuse_without_fit(model: keras.Model) -> None:
    """Raises where nobody would take extra batches, as in `train_on_batch`."""
    for optimizer in meeting_optimizers(model):
        if optimizer.is_paced:
            optimizer.extra_batches.require_paced()


class OwnPace:
    """That of this rank, in one call of `fit`.

    Args:
        model: One that `takes_own_pace`.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._optimizer = next(o for o in meeting_optimizers(model) if o.is_paced)
        self.is_measured = self._optimizer.pace == OWN
        """Whether it follows from the ranks' speed."""
        self._pace = 1 if self.is_measured else int(self._optimizer.pace)
        self._most = 1
        # Since the last look at the clock.
        self._counted = self._batches = 0
        self._began: float | None = None
        self._batch_times: collections.deque[float] = collections.deque(maxlen=_WINDOWS)

    def require_possible(
        self,
        run: calls.Run | None,
        *,
        has_orders: bool,
        process_set: ProcessSet,
    ) -> None:
        """Raises on every rank if it is not on one of them; collective.

        Args:
            run: The call of `fit`.
            has_orders: Whether its data have an order that is numbered by passes.
            process_set: The ranks that train together.

        Raises:
            RingKerasError: Names the first rank, and what is wrong there.
        """
        reasons = [self._obstacle(run, has_orders)]
        ranks = process_set.ranks
        if has_peers(process_set):
            reasons = allgather_object(
                reasons[0], name="fit/own_pace", process_set=process_set
            )
        for rank, reason in zip(ranks, reasons, strict=True):
            if reason:
                raise RingKerasError(
                    "[RK354] "
                    f"fit(): optimizer '{self._optimizer.name}' has a `pace`, by which "
                    "ranks take different numbers of batches, and that cannot be right "
                    f"on rank {rank}: {reason}"
                )

    def _obstacle(self, run: calls.Run | None, has_orders: bool) -> str:
        """What is wrong with it on this rank; empty if nothing is."""
        if len(internals.training_optimizers(self._model)) > 1:
            return (
                "the model has several optimizers, of which others would meet in extra "
                "batches, too. Train with one."
            )
        return (
            self._obstacle_in_data(run, has_orders)
            or _obstacle_in_callbacks(run)
            or self._obstacle_in_accumulation()
        )

    def _obstacle_in_data(self, run: calls.Run | None, has_orders: bool) -> str:
        is_endless = (
            run is not None
            and isinstance(run.data, tf.data.Dataset)
            and run.batch_count() == math.inf
        )
        if run is None or not is_endless:
            return (
                "its data may end before those of others. Give fit() a tf.data.Dataset "
                "that is known to have no end: dataset.repeat(), or after a filter() "
                "dataset.apply(tf.data.experimental.assert_cardinality("
                "tf.data.INFINITE_CARDINALITY)); and steps_per_epoch."
            )
        if not run.keeps_iterator:
            return (
                "without steps_per_epoch no epoch of endless data ends. Give it to "
                "fit(): it counts the batches of the slowest rank."
            )
        if has_orders:
            return (
                "ring_keras.data divides its data anew for each pass, and only parts "
                "of the same pass have no example in common. Shuffle the part itself: "
                "ring_keras.data.shard(dataset).shuffle(size, seed=1).repeat(), "
                "without a seed for shard(), or a shuffle() before."
            )
        if is_joined(run.data):
            return (
                "ring_keras.data.join() asks all ranks for each batch. Leave it out: "
                "data without an end need none."
            )
        if any(map(internals.is_served_in_turn, internals.upstream(run.data))):
            return (
                "its tf.data service gives the ranks their batches in turn. Leave out "
                "round_robin, or consumer_index and num_consumers."
            )
        return ""

    def _obstacle_in_accumulation(self) -> str:
        (innermost,) = internals.innermost([self._optimizer])
        passes = innermost.gradient_accumulation_steps or 1
        if internals.steps_done(innermost) % passes:
            return (
                "the inner optimizer is in the middle of an update of "
                f"{passes} batches, as after a fit() that failed, and ranks would meet "
                "there. Load a checkpoint, or compile the model with a new optimizer."
            )
        if self._model.steps_per_execution % passes == 0:
            return ""
        return (
            f"the inner optimizer makes an update of {passes} batches, and extra ones "
            "must be whole updates. Give compile() a steps_per_execution that is a "
            f"multiple of {passes}. Received: steps_per_execution="
            f"{self._model.steps_per_execution}"
        )

    @property
    def batch_time(self) -> float | None:
        """Seconds that a batch takes this rank without waiting; infinite: unknown.

        None where nobody asks.
        """
        if not self.is_measured:
            return None
        return statistics.median(self._batch_times) if self._batch_times else math.inf

    def follow(self, slowest: float) -> None:
        """Takes as many batches as fit into one of the slowest rank, from now on.

        At most twice as many as in the window before: a measurement may be wrong.

        Args:
            slowest: Of all `batch_time`s the longest.
        """
        own = self.batch_time
        if own is not None and math.isfinite(slowest):
            self._pace = min(max(int(slowest / own), 1), self._most)

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """To be around what trains."""
        paced: contextlib.AbstractContextManager[None] = (
            self._optimizer.extra_batches.paced()
        )
        return paced

    def execute(self, run: Callable[[], Any]) -> Any:
        """An execution of this rank: so many of them, of which the last one counts.

        Raises:
            RingKerasError: If data have ended that had no end.
        """
        with _end_refused():
            if self._pace > 1:
                with self._optimizer.extra_batches.extra():
                    for _ in range(self._pace - 1):
                        run()
            result = run()
        self._counted += self._model.steps_per_execution
        self._batches += self._model.steps_per_execution * self._pace
        if self.is_measured and self._counted >= self._optimizer.batches_apart:
            self._look_at_clock()
        return result

    def begin_epoch(self) -> None:
        """What has passed since the last epoch belongs to no window."""
        if self._began is not None:
            self._began = _own_time()

    def end_steps(self) -> None:
        """Of an epoch, and so of a window."""
        if self.is_measured and self._batches:
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        """After a window. The first one is not counted, in which steps are traced."""
        before, self._began = self._began, _own_time()
        if before is not None and self._began > before:
            self._batch_times.append((self._began - before) / self._batches)
            self._most = 2 * self._pace
        self._counted = self._batches = 0


def _own_time() -> float:
    """Seconds that go on while this rank does not stand still for others."""
    return time.perf_counter() - float(_native.stats(0)["stood_still_s"])


def _obstacle_in_callbacks(run: calls.Run | None) -> str:
    callbacks = [] if run is None else run.callbacks.callbacks
    for callback in callbacks:
        if getattr(callback, "counts_every_batch", False):
            name = type(callback).__name__
            return (
                f"callback {name} goes by a number of batches that all ranks have in "
                f"common. Leave out {name}, or pace."
            )
    return ""


@contextlib.contextmanager
def _end_refused() -> Iterator[None]:
    """Keras would take it for the end of the epoch, where others may wait."""
    try:
        yield
    except (StopIteration, tf.errors.OutOfRangeError) as error:
        raise RingKerasError(
            "[RK356] "
            "fit(): the dataset of this rank has ended, which was said to have no end, "
            "as `pace` needs it: repeat() of nothing ends at once. Look at the part of "
            "this rank: it may have no example, or fewer than a batch with "
            "drop_remainder=True."
        ) from error
