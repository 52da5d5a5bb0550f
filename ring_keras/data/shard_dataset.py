"""Splits a tf.data pipeline among the ranks."""

from typing import Any

import tensorflow as tf

from ring_keras import _keras_internals as internals

__all__ = ["shard_dataset", "shuffle_seeds"]


def shard_dataset(
    dataset: tf.data.Dataset,
    seed: int | None,
    drop_remainder: bool,
    rank: int,
    size: int,
) -> tf.data.Dataset:
    """Rank `rank`'s items of a dataset; see `shard`."""
    _require_common_order(dataset)
    _require_single_items(dataset)
    count = int(dataset.cardinality())
    if seed is not None:
        if count < 0:
            raise ValueError(
                "ring_keras.data.shard(seed=...) shuffles all items, so it must know "
                f"how many there are. Received: a dataset of "
                f"{'infinite' if count == tf.data.INFINITE_CARDINALITY else 'unknown'}"
                " cardinality. Declare the number with dataset.apply(tf.data."
                "experimental.assert_cardinality(n)), or shuffle before with "
                "dataset.shuffle(buffer_size, seed=...), and leave out seed here."
            )
        dataset = dataset.shuffle(max(count, 1), seed=seed)
    if size == 1:
        return dataset
    part = dataset.shard(size, rank)
    if not drop_remainder or count == tf.data.INFINITE_CARDINALITY:
        return part
    if count >= 0:
        return part.take(count // size)
    return _item_of_each_full_round(dataset, rank, size)


def shuffle_seeds(dataset: tf.data.Dataset) -> list[tuple[int, int]]:
    """The seeds of every shuffle that the dataset reads from."""
    seeds = map(internals.shuffle_seeds, internals.upstream(dataset))
    return [pair for pair in seeds if pair is not None]


def _item_of_each_full_round(
    dataset: tf.data.Dataset, rank: int, size: int
) -> tf.data.Dataset:
    """For datasets of unknown length: a round counts only if it is whole."""
    is_tuple = isinstance(dataset.element_spec, tuple)

    def pick(*windows: Any) -> tf.data.Dataset:
        structure = windows if is_tuple else windows[0]
        return tf.data.Dataset.zip(structure).skip(rank).take(1)

    return dataset.window(size, drop_remainder=True).flat_map(pick)


def _require_common_order(dataset: tf.data.Dataset) -> None:
    if (0, 0) in shuffle_seeds(dataset):
        raise ValueError(
            "The dataset was shuffled without a seed: every rank would see another "
            "order, so that some items would be trained on twice and others never. "
            "Pass seed=... to dataset.shuffle() (or to list_files()), or leave the "
            "shuffling to ring_keras.data.shard(dataset, seed=...)."
        )
    if dataset.options().deterministic is False:
        raise ValueError(
            "The dataset has options().deterministic = False: every rank may see "
            "another order, so that some items would be trained on twice and others "
            "never. Set it after ring_keras.data.shard()."
        )


def _require_single_items(dataset: tf.data.Dataset) -> None:
    for source in internals.upstream(dataset):
        if type(source).__name__ == internals.UNBATCH_DATASET:
            return
        if type(source).__name__ in internals.BATCH_DATASETS:
            raise ValueError(
                "The dataset is batched: whole batches would be dealt out, and a rank "
                "might get one more than another, or the short one. Call "
                "ring_keras.data.shard() before dataset.batch()."
            )
