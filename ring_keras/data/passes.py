"""Datasets that are made anew for each pass over them."""

from collections.abc import Callable

import tensorflow as tf

from ring_keras.ops.data_order import DataOrder

__all__ = ["in_passes", "passes_of"]


def passes_of(order: DataOrder, seed: int) -> tf.data.Dataset:
    """Begins a pass each time that it is read; its one item is that pass's seed."""
    return tf.data.Dataset.from_tensors(0).map(lambda _: order.begin_pass(seed))


def in_passes(
    order: DataOrder,
    passes: tf.data.Dataset,
    pass_of: Callable[[tf.Tensor], tf.data.Dataset],
    cardinality: int,
) -> tf.data.Dataset:
    """A dataset of so many items, made anew for each pass from the seed of that."""
    part = passes.flat_map(pass_of)
    if cardinality != tf.data.UNKNOWN_CARDINALITY:
        part = part.apply(tf.data.experimental.assert_cardinality(cardinality))
    return order.put_on(part)
