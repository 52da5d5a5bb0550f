"""Batches that a rank takes out of its data before the ranks ask who has some."""

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ring_keras.training.timed_iterator import (
    TimedIterator,
    TimedIteratorSpec,
    is_of_dataset,
    timed_iterator,
    variant_of,
)
from ring_keras.training.unpadded_iterator import UnpaddedIterator

__all__ = ["TakenBatches"]


class TakenBatches:
    """The next batches of one call of `fit`, as an iterator over just them.

    A step gets them by a queue, as it would get them from the dataset: so it is traced
    once for all of them, whatever their shapes, and XLA may compile it.

    Args:
        most: How many steps an execution has.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue = self._new_queue()
        self._fill = tf.function(self._fill_queue, autograph=False)

    def take(
        self,
        iterator: Any,
        call: Callable[[Callable[[Any], Any], Any], Any],
        *,
        for_xla: bool,
    ) -> tuple[int, Any]:
        """Takes those of the next execution, of which the last one may have fewer.

        Args:
            iterator: Of the data.
            call: Calls a function, which may wait for data.
            for_xla: Whether padding is to be left out.

        Returns:
            How many there are, and an iterator over them. Without any, it has ended.
        """
        if not is_of_dataset(iterator):  # Of a strategy.
            batches = list(itertools.islice(iterator, self._most))
            return len(batches), iter(batches)
        queue, timed = self._queue, timed_iterator(iterator)
        count = int(call(lambda timed: self._fill(queue.queue_ref, timed), timed))
        if count == 0:
            queue.close()
            self._queue = self._new_queue()  # There may be another epoch.
        kind = _UnpaddedTakenIterator if for_xla else _TakenIterator
        taken = kind([queue.queue_ref], iterator.element_spec)
        taken.queue = queue  # Which lives no longer than its object.
        return count, taken

    def _new_queue(self) -> tf.queue.FIFOQueue:
        with tf.device("CPU:0"):
            return tf.queue.FIFOQueue(self._most, [tf.variant], [[]])

    def _fill_queue(self, queue: tf.Tensor, iterator: TimedIterator) -> tf.Tensor:
        def take(count: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            found = iterator.get_next_as_optional()

            def put() -> tf.Tensor:
                put = tf.raw_ops.QueueEnqueueV2(
                    handle=queue, components=[variant_of(found)]
                )
                with tf.control_dependencies([put]):
                    return tf.constant(1)

            more = tf.cond(found.has_value(), put, lambda: tf.constant(0))
            return count + more, more > 0

        with tf.device("CPU:0"):
            count, _ = tf.while_loop(
                lambda count, goes_on: tf.logical_and(goes_on, count < self._most),
                take,
                (tf.constant(0), tf.constant(True)),
                parallel_iterations=1,
            )
        return count


class _TakenIterator(TimedIterator):
    """Of a queue of batches, which are timed where they are taken."""

    queue: Any = None

    @property
    def _type_spec(self) -> "_TakenIteratorSpec":
        return _TakenIteratorSpec(self.element_spec)

    def _next_internal(self) -> Any:
        # Raises at the end, as that of a dataset: the queue is closed then.
        with tf.device("CPU:0"):
            return self._optional(self._dequeued()).get_value()

    def get_next_as_optional(self) -> Any:
        """The next batch, or none: Keras may look for more than were taken."""
        with tf.device("CPU:0"):
            size = tf.raw_ops.QueueSizeV2(handle=self._iterator_resource)
            return self._optional(tf.cond(size > 0, self._dequeued, self._none))

    def _dequeued(self) -> tf.Tensor:
        [variant] = tf.raw_ops.QueueDequeueV2(
            handle=self._iterator_resource, component_types=[tf.variant]
        )
        return tf.ensure_shape(variant, [])

    def _none(self) -> tf.Tensor:
        return variant_of(tf.experimental.Optional.empty(self.element_spec))

    def _optional(self, variant: tf.Tensor) -> Any:
        return tf.OptionalSpec(self.element_spec)._from_components([variant])


class _UnpaddedTakenIterator(UnpaddedIterator, _TakenIterator):
    """The same, without padding."""

    @property
    def _type_spec(self) -> "_UnpaddedTakenIteratorSpec":
        return _UnpaddedTakenIteratorSpec(self.element_spec)


class _TakenIteratorSpec(TimedIteratorSpec):
    __slots__ = ()

    @property
    def value_type(self) -> type:
        return _TakenIterator


class _UnpaddedTakenIteratorSpec(TimedIteratorSpec):
    __slots__ = ()

    @property
    def value_type(self) -> type:
        return _UnpaddedTakenIterator
