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
        resource = internals.private(iterator, internals.ITERATOR_RESOURCE)
        on_host = tf.DeviceSpec.from_string(resource.device).device_type == "CPU"
        kept[kind] = kind([resource], iterator.element_spec, on_host)
    return kept[kind]


class TimedIterator(_Iterator):
    """Of the same resource.

    Args:
        components: The resource.
        element_spec: Of a batch.
        on_host: Whether batches come in host memory, as they do unless the dataset
            puts them on a GPU.
    """

    def __init__(
        self, components: Any, element_spec: Any, on_host: bool = True
    ) -> None:
        super().__init__(components=components, element_spec=element_spec)
        self.on_host = on_host

    @property
    def _type_spec(self) -> "TimedIteratorSpec":
        return TimedIteratorSpec(self.element_spec, self.on_host)

    def _next_internal(self) -> Any:
        return _timed(super()._next_internal, self._count)

    def get_next_as_optional(self) -> Any:
        """The next batch, or none."""
        return _timed(super().get_next_as_optional, self._count_if_any)

    def _count(self, batch: Any) -> tf.Tensor:
        """Of examples; the first batch of a `fit` is noted."""
        ops = _libraries.ops()
        leaves = tf.nest.flatten(batch, expand_composites=True)
        tensors = [leaf for leaf in leaves if leaf is not None]

        def note() -> tf.Tensor:
            noted = ops.ring_keras_note_first_batch(batch=tensors)
            with tf.control_dependencies([noted]):
                return tf.constant(True)

        if self.on_host:
            # With a branch anywhere TensorFlow needs longer for each op of the step.
            note()
        else:
            # In a branch, which takes nothing from another device unless it runs.
            awaits = ops.ring_keras_awaits_first_batch()
            tf.cond(awaits, note, lambda: tf.constant(False))
        return real_example_count(batch)

    def _count_if_any(self, batch: Any) -> tf.Tensor:
        return tf.cond(
            batch.has_value(),
            lambda: self._count(batch.get_value()),
            lambda: tf.zeros([], tf.float64),
        )


class TimedIteratorSpec(tf.data.IteratorSpec):
    """Has TensorFlow build the same kind of iterator inside of a graph.

    Args:
        element_spec: Of a batch.
        on_host: As of the iterator.
    """

    __slots__ = ("_on_host",)

    def __init__(self, element_spec: Any, on_host: bool = True) -> None:
        super().__init__(element_spec)
        self._on_host = on_host

    @property
    def value_type(self) -> type:
        """The kind."""
        return TimedIterator

    def _serialize(self) -> tuple[Any, bool]:
        return self._element_spec, self._on_host

    def _from_components(self, components: Any) -> Any:
        return self.value_type(components, self._element_spec, self._on_host)


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
