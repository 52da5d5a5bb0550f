"""An iterator for a step that XLA compiles, which takes padding out of its batches.

What XLA compiles cannot change the number of rows. So they are taken out before, in the
graph that Keras calls, and XLA compiles once for each number of rows that comes.
"""

from typing import Any

import tensorflow as tf

from ring_keras.training.timed_iterator import (
    TimedIterator,
    TimedIteratorSpec,
    variant_of,
)
from ring_keras.training.uneven_batches import may_have_padding, without_padding

__all__ = ["UnpaddedIterator"]


class UnpaddedIterator(TimedIterator):
    """Of the same resource, timed."""

    @property
    def _type_spec(self) -> "_UnpaddedIteratorSpec":
        return _UnpaddedIteratorSpec(self.element_spec, self.on_host)

    def _next_internal(self) -> Any:
        batch = super()._next_internal()
        return without_padding(batch) if may_have_padding(batch) else batch

    def get_next_as_optional(self) -> Any:
        """The next batch, or none."""
        found = super().get_next_as_optional()
        if not may_have_padding(found.element_spec):
            return found
        specs = []

        def unpadded() -> Any:
            batch = without_padding(found.get_value())
            specs.append(tf.nest.map_structure(tf.type_spec_from_value, batch))
            return variant_of(tf.experimental.Optional.from_value(batch))

        variant = tf.cond(found.has_value(), unpadded, lambda: variant_of(found))
        return tf.OptionalSpec(specs[0])._from_components([variant])


class _UnpaddedIteratorSpec(TimedIteratorSpec):
    __slots__ = ()

    @property
    def value_type(self) -> type:
        return UnpaddedIterator
