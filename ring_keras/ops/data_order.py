"""Which order the next pass over some data has, the same on all ranks."""

import gc
import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ring_keras.errors import RankMismatchError
from ring_keras.job.job import PerJob, current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.objects import allgather_object

__all__ = ["DataOrder", "living_orders", "order_on", "require_common_orders"]

_ATTRIBUTE = "_ring_keras_data_order"

# Seeds that differ by one share no epoch before this many.
_SEEDS_PER_EPOCHS = 1_000_003
# Nor do the passes of one epoch share one with another epoch.
_SEEDS_PER_PASSES = 7_368_787


class DataOrder:
    """The number of the order in which a rank passes over its part of some data.

    `fit` with a callback of ours tells it the number of each epoch. Without one it
    counts the passes that have begun: a pass that one rank begins alone, to look at
    an item say, sets that rank apart, which is found when training begins.

    Args:
        what: The data, for messages.
        counts_passes: Whether passes in the same epoch differ.
        is_given: Whether the data have their order from elsewhere, by the number of
            passes; then it can only be watched.
    """

    changes_with_epochs = False
    """Whether a pass changes where an epoch of Keras's ends within it."""

    def __init__(
        self, what: str, *, counts_passes: bool = True, is_given: bool = False
    ) -> None:
        self.what = what
        self.is_given = is_given
        self.key = ""
        """The same on every rank that has split the data with this one."""
        self._counts_passes = counts_passes
        with tf.init_scope(), tf.device("CPU:0"):  # Where tf.data reads it.
            self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._passes = tf.Variable(0, dtype=tf.int64, trainable=False)

    def add_to_job(self, process_set: ProcessSet) -> None:
        """Notes which ranks have split the data."""
        key = process_set.key()
        orders = _orders.of(current_job())[key]
        self.key = f"{key}/{len(orders)}"
        orders.append(weakref.ref(self))

    def set_epoch(self, epoch: int) -> None:
        """The next pass is the first of this epoch."""
        if not self.is_given:
            self._epoch.assign(epoch)
            self._passes.assign(0)

    def begin_pass(self, seed: int) -> tf.Tensor:
        """The seed of the next pass, in tf.data's graph: a scalar of int64."""
        passes = self._passes.assign_add(1) - 1
        number = tf.convert_to_tensor(self._epoch)
        if self._counts_passes:
            number += passes * _SEEDS_PER_PASSES
        return seed * _SEEDS_PER_EPOCHS + number

    def passes(self) -> int:
        """How many have begun, in this epoch if its number is known."""
        return int(self._passes.numpy())

    def put_on(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Has `order_on` find this one."""
        vars(dataset)[_ATTRIBUTE] = self
        return dataset


# By process set: of all data that it has split. Its ranks split data together, so the
# n-th of one rank is the n-th of another.
_orders: PerJob[defaultdict[int, list[weakref.ref[DataOrder]]]] = PerJob(
    lambda: defaultdict(list)
)


def order_on(data: Any) -> Any:
    """The order of this very dataset; None if it has none."""
    return getattr(data, _ATTRIBUTE, None)


def living_orders(process_set: ProcessSet) -> list[DataOrder]:
    """Those of all data that these ranks have split and still have."""
    # A dataset that was looked at and dropped refers to itself, and may be there yet.
    gc.collect()
    orders = [order() for order in _orders.of(current_job())[process_set.key()]]
    return [order for order in orders if order is not None]


def require_common_orders(
    orders: Iterable[DataOrder], process_set: ProcessSet, *, unbegun: bool = False
) -> None:
    """Raises the same error on every rank if the ranks' next orders differ.

    A collective.

    Args:
        orders: Of data of this rank's.
        process_set: The ranks that train together.
        unbegun: Whether data that some ranks have not passed over are compared, too.

    Raises:
        RankMismatchError: If some ranks have begun more passes than others.
    """
    by_key = {order.key: order for order in orders}
    begun = {key: order.passes() for key, order in by_key.items()}
    begun = {key: passes for key, passes in begun.items() if passes or unbegun}
    by_rank = allgather_object(begun, name="data.order", process_set=process_set)
    common = set.intersection(*(set(passes) for passes in by_rank))
    for key in sorted(common):
        passes = [begun[key] for begun in by_rank]
        if len(set(passes)) > 1:
            raise RankMismatchError(
                "[RK319] "
                "ring_keras.data: the ranks pass over their data in different orders, "
                "so that some items would be trained on twice and others never: of "
                f"{by_key[key].what} ranks {list(process_set.ranks)} have begun "
                f"{passes} passes. next(iter(dataset)) on one rank begins a pass: look "
                "at the data before ring_keras.data.shard(), or on every rank. Or give "
                "shard() the seed, and fit() a callback of ring_keras.callbacks: then "
                "the order depends on the number of the epoch."
            )
