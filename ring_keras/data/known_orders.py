"""Whether a new process finds a place in data again."""

from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.ops.data_order import order_on

__all__ = ["require_known_order"]


def require_known_order(data: Any) -> None:
    """Refuses data whose passes have an order that a new process does not know.

    The order of `ring_keras.data.shard` follows from the number of the epoch. But a
    shuffle of tf.data counts its passes, and a cache keeps the order of its first one.

    Args:
        data: What is trained on, or divided. Nothing is known of other kinds than
            `tf.data.Dataset`.

    Raises:
        ValueError: If so.
    """
    lost_by = _order_lost_by(data) if isinstance(data, tf.data.Dataset) else None
    if lost_by is not None:
        raise ValueError(
            "[RK512] ring_keras.data.Resume: a new process would not find the place in "
            f"these data again, because of {lost_by}"
        )


def _order_lost_by(data: tf.data.Dataset) -> str | None:
    """What is in the way, and what to do."""
    if internals.may_reorder(data):
        return (
            "deterministic=False, in its options() or in a transformation, of a "
            "shuffle() without a seed inside of interleave(), or of a filter() by "
            "random numbers without one. Leave it out."
        )
    frozen: set[int] = set()  # Below a cache, which reads them in their first order.
    for one in internals.upstream(data):
        order = order_on(one)
        if order is not None and order.is_given:
            return (
                "a shuffle before ring_keras.data.shard(). Pass the seed to shard(), "
                "or give that shuffle reshuffle_each_iteration=False."
            )
        changes = internals.reshuffles(one) and id(one) not in frozen
        if changes or internals.shuffle_seeds(one) == (0, 0):
            return (
                "dataset.shuffle(), which counts its passes from the first one on, or "
                "of sample_from_datasets(). Give it seed=1 and "
                "reshuffle_each_iteration=False, or rerandomize_each_iteration=False: "
                "behind ring_keras.data.shard(seed=..., resume=...) the order differs "
                "in each epoch in any case. list_files() and "
                "image_dataset_from_directory() take shuffle=False."
            )
        if internals.keeps_first_pass(one):
            sources = list(internals.upstream(one))
            frozen.update(map(id, sources))
            if any(map(order_on, sources)):
                return (
                    "dataset.cache(), which keeps the first epoch's order. Cache "
                    "before ring_keras.data.shard()."
                )
    return None
