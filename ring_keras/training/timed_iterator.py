"""An iterator over a dataset that tells the engine for how long a step waits for it.

And how many examples there are in what comes: the gradients' weight is not always that,
and there are steps, such as those that only accumulate, which reduce none.

The clock is looked at inside the graph that Keras calls, around the op that gets the
next batch: so it is the same for each step of an execution, and whether or not XLA
compiles what follows.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ring_keras import _libraries
from ring_keras import keras_internals as internals
from ring_keras.training.uneven_batches import real_example_count

__all__ = [
    "TimedIterator",
    "TimedIteratorSpec",
    "is_of_dataset",
    "timed_iterator",
    "variant_of",
]

_Iterator: Any = internals.OWNED_ITERATOR


def is_of_dataset(iterator: Any) -> bool:
    """Whether it is what `iter()` makes of a `tf.data.Dataset`, and no other."""
    return type(iterator) is _Iterator


def variant_of(optional: Any) -> tf.Tensor:
    """The tensor that an optional consists of."""
    [tensor] = tf.OptionalSpec(optional.element_spec)._to_components(optional)
    return tensor


def timed_iterator(iterator: Any, kind: type["TimedIterator"] | None = None) -> Any:
    """The same iterator, timed; what is none of `tf.data` stays as it is.

    Args:
        iterator: Of a step's batches.
        kind: A subclass of `TimedIterator`, or that one by default.
    """
    if not is_of_dataset(iterator):
        return iterator
    kind = kind or TimedIterator
    # Kept there, so that it lives no longer.
    kept = vars(iterator).setdefault("_ring_keras_timed", {})
    if kind not in kept:
        kept[kind] = kind(
            components=[internals.private(iterator, internals.ITERATOR_RESOURCE)],
            element_spec=iterator.element_spec,
        )
    return kept[kind]


class TimedIterator(_Iterator):
    """Of the same resource."""

    @property
    def _type_spec(self) -> "TimedIteratorSpec":
        return TimedIteratorSpec(self.element_spec)

    def _next_internal(self) -> Any:
        return _timed(super()._next_internal, _count)

    def get_next_as_optional(self) -> Any:
        """The next batch, or none."""
        return _timed(super().get_next_as_optional, _count_if_any)


class TimedIteratorSpec(tf.data.IteratorSpec):
    """Has TensorFlow build the same kind of iterator inside of a graph."""

    __slots__ = ()

    @property
    def value_type(self) -> type:
        """The kind."""
        return TimedIterator

    def _from_components(self, components: Any) -> Any:
        return self.value_type(components=components, element_spec=self._element_spec)


def _count(batch: Any) -> tf.Tensor:
    """Of examples; the first batch of a `fit` is noted."""
    ops = _libraries.ops()
    leaves = tf.nest.flatten(batch, expand_composites=True)
    tensors = [leaf for leaf in leaves if leaf is not None]

    def note() -> tf.Tensor:
        with tf.control_dependencies([ops.ring_keras_note_first_batch(batch=tensors)]):
            return tf.constant(True)

    if tf.config.get_visible_devices("GPU"):
        # In a branch, which takes nothing from another device unless it runs.
        tf.cond(ops.ring_keras_awaits_first_batch(), note, lambda: tf.constant(False))
    else:
        # With a branch anywhere TensorFlow needs longer for each op of the step.
        note()
    return real_example_count(batch)


def _count_if_any(batch: Any) -> tf.Tensor:
    return tf.cond(
        batch.has_value(),
        lambda: _count(batch.get_value()),
        lambda: tf.zeros([], tf.float64),
    )


def _timed(get: Callable[[], Any], count: Callable[[Any], tf.Tensor]) -> Any:
    since = _libraries.ops().ring_keras_ticks()
    with tf.control_dependencies([since]):
        batch = get()
    # A dataset may have None in place of weights.
    leaves = tf.nest.flatten(batch, expand_composites=True)
    with tf.control_dependencies([leaf for leaf in leaves if leaf is not None]):
        until = _libraries.ops().ring_keras_ticks()
    noted = _libraries.ops().ring_keras_note_input(
        since=since, until=until, examples=count(batch)
    )
    # Nothing of the step before, so that it counts as this one's.
    with tf.control_dependencies([noted]):
        return tf.nest.map_structure(
            lambda leaf: None if leaf is None else tf.identity(leaf),
            batch,
            expand_composites=True,
        )
