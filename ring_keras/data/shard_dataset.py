"""Splits a tf.data pipeline among the ranks."""

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.data.known_orders import require_known_order
from ring_keras.data.passes import in_passes, passes_of
from ring_keras.data.resume import Resume
from ring_keras.data.shard_arrays import require_pair_or_triple
from ring_keras.ops.data_order import DataOrder
from ring_keras.ops.redivision import Division
from ring_keras.values.padding import PADDING_WEIGHT

__all__ = ["item_bytes", "shard_dataset", "shuffle_seeds"]

_GRAPH_SEED = 1


def shard_dataset(
    dataset: tf.data.Dataset,
    seed: int | None,
    remainder: str,
    division: Division,
    resume: Resume | None = None,
) -> tuple[tf.data.Dataset, Callable[[Division], tf.data.Dataset] | None]:
    """A rank's items of a dataset; see `shard`.

    Returns:
        They; and what makes those of another division, None if the order of the next
        pass over the data, or their number, is not known.
    """
    _require_common_order(dataset)
    _require_single_items(dataset)
    if remainder == "pad":
        dataset = _with_sample_weights(dataset)
    count = int(dataset.cardinality())
    part_of = functools.partial(_part_of, count=count, remainder=remainder)
    what = "the dataset of unknown length" if count < 0 else f"{count} items"
    if seed is None:
        if not any(map(internals.reshuffles, internals.upstream(dataset))):
            parts = functools.partial(part_of, dataset)
            return parts(division), None if count < 0 else parts
        order = DataOrder(what, is_given=True)
        passes = passes_of(order, 0)
        part = part_of(dataset, division)
        length = int(part.cardinality())
        again = in_passes(order, passes, lambda _: part_of(dataset, division), length)
        return again, None
    if count < 0:
        raise ValueError(
            "[RK510] "
            "ring_keras.data.shard(seed=...) shuffles all items, so it must know "
            f"how many there are. Received: a dataset of "
            f"{'infinite' if count == tf.data.INFINITE_CARDINALITY else 'unknown'}"
            " cardinality. Declare the number with dataset.apply(tf.data."
            "experimental.assert_cardinality(n)), or shuffle before with "
            "dataset.shuffle(buffer_size, seed=...), and leave out seed here."
        )
    order = DataOrder(what, counts_passes=resume is None)
    if resume is not None:
        require_known_order(dataset)
        resume.at_epoch(order.set_epoch)

    def shuffled(pass_seed: tf.Tensor) -> tf.data.Dataset:
        # Of this small graph alone. TensorFlow cannot mix a 0 with a tensor.
        tf.random.set_seed(_GRAPH_SEED)
        return dataset.shuffle(
            max(count, 1), seed=pass_seed, reshuffle_each_iteration=False
        )

    passes = passes_of(order, seed)

    def shuffled_part(division: Division) -> tf.data.Dataset:
        return in_passes(
            order,
            passes,
            lambda pass_seed: part_of(shuffled(pass_seed), division),
            int(part_of(dataset, division).cardinality()),
        )

    return shuffled_part(division), shuffled_part


def item_bytes(dataset: tf.data.Dataset) -> int:
    """What an item takes in memory, as far as the dataset knows: not of strings."""
    total = 0
    for spec in tf.nest.flatten(dataset.element_spec):
        if isinstance(spec, tf.TensorSpec) and spec.dtype.is_numpy_compatible:
            sizes = [] if spec.shape.rank is None else spec.shape.as_list()
            total += spec.dtype.size * math.prod(size or 1 for size in sizes)
    return total


def shuffle_seeds(dataset: tf.data.Dataset) -> list[tuple[int, int]]:
    """The seeds of every random order that the dataset reads from."""
    seeds = map(internals.shuffle_seeds, internals.upstream(dataset))
    return [pair for pair in seeds if pair is not None]


def _part_of(
    dataset: tf.data.Dataset, division: Division, *, count: int, remainder: str
) -> tf.data.Dataset:
    """Of a dataset with `count` items, which a graph does not know."""
    rank, size = division.rank, division.size
    if division.start:
        dataset, count = dataset.skip(division.start), count - division.start
    if size == 1:
        return dataset
    part = dataset.shard(size, rank)
    if remainder == "keep" or count == tf.data.INFINITE_CARDINALITY:
        return part
    if count < 0:
        return _item_of_each_round(dataset, remainder == "pad", rank, size)
    if remainder == "drop":
        return part.take(count // size)
    if rank >= count > 0:
        return dataset.take(1).map(_as_padding)
    lacks_one = rank >= count % size > 0
    return _with_last_twice(part, count // size) if lacks_one else part


def _item_of_each_round(
    dataset: tf.data.Dataset, pad: bool, rank: int, size: int
) -> tf.data.Dataset:
    """For datasets of unknown length: one item of each `size` that follow.

    Where the last round is not whole, all ranks get one, or none does.
    """
    is_tuple = isinstance(dataset.element_spec, tuple)

    def pick(*windows: Any) -> tf.data.Dataset:
        structure = windows if is_tuple else windows[0]
        items = tf.data.Dataset.zip(structure)
        mine = items.skip(rank).take(1)
        if pad:
            mine = mine.concatenate(items.take(1).map(_as_padding)).take(1)
        return mine

    return dataset.window(size, drop_remainder=not pad).flat_map(pick)


def _with_sample_weights(dataset: tf.data.Dataset) -> tf.data.Dataset:
    require_pair_or_triple(dataset.element_spec)
    if len(dataset.element_spec) == 2:
        return dataset.map(lambda x, y: (x, y, tf.constant(1.0)))

    def without_marks(x: Any, y: Any, weights: Any) -> Any:
        """A -0.0 of the user's own is no padding."""
        return x, y, tf.nest.map_structure(_positive_zeros, weights)

    return dataset.map(without_marks)


def _with_last_twice(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Its `count` items, and the last once more, as padding.

    In one pass: a second one would draw other random numbers.
    """

    def repeated(index: tf.Tensor, item: Any) -> tf.data.Dataset:
        copies = tf.where(index == count - 1, tf.constant(2, tf.int64), 1)
        return tf.data.Dataset.from_tensors(item).repeat(copies)

    def marked(index: tf.Tensor, item: Any) -> Any:
        padding = _as_padding(*item)
        return tf.nest.map_structure(
            lambda real, pad: tf.where(index == count, pad, real), item, padding
        )

    twice = dataset.enumerate().flat_map(repeated)
    twice = twice.apply(tf.data.experimental.assert_cardinality(count + 1))
    return twice.enumerate().map(marked)


def _as_padding(*item: Any) -> Any:
    *example, weights = item
    marks = tf.nest.map_structure(_negative_zeros, weights)
    return (*example, marks)


def _positive_zeros(weights: Any) -> tf.Tensor:
    if not isinstance(weights, tf.Tensor) or not weights.dtype.is_floating:
        return weights  # What is to be padded is refused by `_negative_zeros`.
    return tf.where(weights == 0, tf.zeros_like(weights), weights)


def _negative_zeros(weights: Any) -> tf.Tensor:
    if not isinstance(weights, tf.Tensor) or not weights.dtype.is_floating:
        raise ValueError(
            "Sample weights must be dense tensors of floating-point numbers for "
            f"remainder='pad'. Received: {type(weights).__name__} of "
            f"{weights.dtype.name}"
        )
    return tf.fill(tf.shape(weights), tf.constant(PADDING_WEIGHT, weights.dtype))


def _require_common_order(dataset: tf.data.Dataset) -> None:
    if (0, 0) in shuffle_seeds(dataset):
        raise ValueError(
            "[RK510] "
            "The dataset was shuffled without a seed: every rank would see another "
            "order, so that some items would be trained on twice and others never. "
            "Pass seed=... to dataset.shuffle() (or to list_files(), or "
            "sample_from_datasets()), or leave the shuffling to ring_keras.data."
            "shard(dataset, seed=...)."
        )
    if internals.may_reorder(dataset):
        raise ValueError(
            "[RK510] "
            "The dataset has deterministic=False, in its options() or in one of its "
            "transformations, shuffles without a seed inside of interleave(), or "
            "filters by random numbers without a seed: every rank may see another "
            "order, so that some items would be trained on twice and others never. Do "
            "that after ring_keras.data.shard()."
        )


def _require_single_items(dataset: tf.data.Dataset) -> None:
    for source in internals.upstream(dataset, items_only=True):
        if type(source).__name__ == internals.UNBATCH_DATASET:
            return
        if type(source).__name__ in internals.BATCH_DATASETS:
            raise ValueError(
                "[RK510] "
                "The dataset is batched: whole batches would be dealt out, and a rank "
                "might get one more than another, or the short one. Call "
                "ring_keras.data.shard() before dataset.batch(). Keras's functions "
                "such as image_dataset_from_directory make no batches with "
                "batch_size=None."
            )
