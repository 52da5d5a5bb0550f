"""TensorBoard's files, with what all ranks measure."""

import weakref
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.callbacks.bucket_figures import bucket_figures
from ring_keras.callbacks.meeting_figures import MeetingFigures
from ring_keras.callbacks.ring_summaries import RingSummaries
from ring_keras.callbacks.summary_file import SummaryFile
from ring_keras.job.topology import rank
from ring_keras.keras_internals import calls
from ring_keras.training.attachment import attach
from ring_keras.training.distributed_fit import DistributedFit, Moment
from ring_keras.training.distributed_models import process_set_of

__all__ = ["TensorBoard"]


class TensorBoard(keras.callbacks.TensorBoard):
    """`keras.callbacks.TensorBoard` for several ranks, of which the first writes.

    Give it to every rank, with the same arguments, which are Keras's. It writes Keras's
    scalars and, under `ring/`, scalars of all ranks: the seconds of a step and of its
    parts, bytes and bandwidth, examples per second, scaling efficiency, and the rank
    that holds the others up; of ranks that train apart, also what their meetings send,
    how far the ranks have drifted from each other, and when the next one is. Their step
    is the optimizer's. The first step of a `fit` is left out of times, because
    TensorFlow traces and compiles it. With the extra `ring-keras[tensorboard]`,
    TensorBoard has a page "Ring"; see docs/monitoring.md.

    `update_freq` says how often they are written: at the end of each epoch, or every
    `update_freq` batches. With `steps_per_execution`, Keras counts one execution as one
    batch. Each time, one small collective in a background thread gathers the ranks'
    numbers. The end of training waits for the last one.

    Histograms, profiles, graphs and embeddings are those of the rank that writes. The
    others wait for it in their next step, as for any slow rank.

    When ranks change, under `ring_keras.callbacks.Elastic`, the first of the remaining
    ranks writes from then on, into a new file.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[ring.callbacks.TensorBoard("logs")])

    Args:
        *args: As for `keras.callbacks.TensorBoard`.
        **kwargs: The same.
    """

    keeps_state = True
    gathers_figures = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ring: RingSummaries | None = None
        self._meetings: MeetingFigures | None = None
        # In this `fit`.
        self._begun: list[RingSummaries] = []
        self._fit: DistributedFit | None = None
        self._batches = 0
        self._epoch = 0
        self._is_in_batch = False
        # The optimizer's, when `fit` began.
        self._steps_before = 0
        self._prepared = self._is_writer = False

    def set_model(self, model: keras.Model) -> None:
        """Nothing is written before it is known which ranks train the model."""
        if model is not self.model:
            self._prepared = self._is_writer = False
        # Else this may be a `predict` inside `fit`, which goes on.
        keras.callbacks.Callback.set_model(self, model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins to write, and to gather when all callbacks have begun."""
        attach(self.model)
        self._abandon()
        internals.leave_writers(self)
        self._begun = []
        self._is_in_batch = False
        # A `fit` that raises does not come to `on_train_end`.
        callbacks = calls.calling_callback_list()
        if callbacks is not None:
            end = weakref.finalize(callbacks, _end, weakref.ref(self), self._begun)
            end.atexit = False
        self._steps_before = self._steps_done()
        self._fit = fit = DistributedFit.begin(self)
        self._prepared = False  # Keras makes new files for each `fit`.
        if self._find_writer():
            super().on_train_begin(logs)
        if fit is not None:
            fit.when(Moment.ALL_HAVE_BEGUN, self, self._begin_to_gather)
            fit.when(Moment.RANKS_HAVE_CHANGED, self, self._begin_to_gather)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """As Keras's, on the rank that writes; most batches leave nothing to do."""
        self._is_in_batch = True
        if self._is_writer and not internals.begin_silent_train_batch(self):
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """As Keras's; every so many batches the ranks' numbers are gathered."""
        self._is_in_batch = False
        if self._is_writer and not internals.is_silent_after_batch(self):
            super().on_train_batch_end(batch, logs)
        if self._fit is not None and self._fit.epoch_is_over:
            return  # The rank that has stopped does not come here.
        self._batches += 1
        if self._batches == 1 and self._ring is not None:
            self._ring.begin()
        if self.update_freq != "epoch" and self._batches % self.update_freq == 0:
            self._update()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As Keras's, on the rank that writes."""
        self._epoch = epoch
        if self._is_writer:
            super().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As Keras's; then too the ranks' numbers are gathered."""
        if self._is_writer:
            super().on_epoch_end(epoch, logs)
        self._update()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As Keras's, on the rank that writes."""
        if self._find_writer():
            super().on_test_begin(logs)

    def on_test_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """As Keras's, on the rank that writes; most batches leave nothing to do."""
        if self._is_writer and not internals.begin_silent_test_batch(self):
            super().on_test_batch_begin(batch, logs)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """As Keras's, on the rank that writes."""
        if self._is_writer:
            super().on_test_end(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits for the last numbers and events, and closes the files."""
        self._update()  # Callbacks that come later have told of the last epoch.
        ring, self._ring = self._ring, None
        self._fit = None
        if ring is not None:
            # Or it would wait for a rank.
            DistributedFit.calling_sections().require_all_there()
            ring.close()
        if self._is_writer:
            super().on_train_end(logs)
            self._prepared = False

    def _begin_to_gather(self) -> None:
        """With the ranks that there are now; all come here between the same batches."""
        self._abandon()
        self._hand_over()
        process_set = process_set_of(self.model)
        if process_set.included():
            self._meetings = MeetingFigures(self.model)
            self._ring = RingSummaries(process_set, self._file())
            self._begun.append(self._ring)

    def _file(self) -> SummaryFile | None:
        """Where this rank writes what all measure."""
        return SummaryFile(internals.train_writer(self)) if self._is_writer else None

    def _abandon(self) -> None:
        self._batches = 0
        if self._ring is not None:
            self._ring.abandon()
            self._ring = None

    def _hand_over(self) -> None:
        """This rank may be the first one now, or be it no more."""
        was_writer = self._is_writer
        if self._find_writer() and not was_writer:
            super().on_train_begin()
            done = self._steps_done() - self._steps_before
            internals.set_batches_done(self, done // self.model.steps_per_execution)
            super().on_epoch_begin(self._epoch)
            if self._is_in_batch:
                super().on_train_batch_begin(0)  # It counts them itself.
        elif was_writer and not self._is_writer:
            super().on_train_end()
            self._prepared = False

    def _steps_done(self) -> int:
        # A copy to the host, as rare as updates are.
        steps = internals.steps_done_of(self.model)
        return self._batches if steps is None else steps

    def _update(self) -> None:
        if self._ring is not None:
            optimizers = internals.optimizers_of(self.model)
            assert self._meetings is not None
            self._ring.update(
                self._steps_done(),
                bucket_figures(optimizers),
                self._meetings.take(self._fit),
            )

    def _find_writer(self) -> bool:
        """Whether this rank writes; what Keras prepares for it is done then.

        It looks through the model, so what comes with every batch asks `_is_writer`.
        """
        self._is_writer = rank() == process_set_of(self.model).ranks[0]
        if self._is_writer and not self._prepared:
            self._prepared = True
            super().set_model(self.model)
        return self._is_writer


def _end(callback: "weakref.ref[TensorBoard]", begun: list[RingSummaries]) -> None:
    """Ends what a `fit` has begun, which may have raised."""
    for ring in begun:
        ring.abandon()
    board = callback()
    if board is not None and board._begun is begun:
        internals.leave_writers(board)
