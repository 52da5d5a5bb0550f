"""`keras.callbacks.SwapEMAWeights` where each rank has some of the averages."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.errors import (
    CollectiveTimeoutError,
    PeerLostError,
    RankMismatchError,
)
from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.hooking import shards_state
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.update_hook import UpdateHook
from ring_keras.training.calls_under_way import calls_under_way
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["require_same_swaps", "swap_together", "swaps_of"]


@functools.cache
def swap_together() -> None:
    """From now on, all ranks take the averages from those that have them."""
    cls = keras.callbacks.SwapEMAWeights
    for name in (internals.SWAP_AVERAGES, internals.KEEP_AVERAGES):
        setattr(cls, name, _of_all_ranks(getattr(cls, name)))


def _of_all_ranks(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def run(self: keras.callbacks.Callback, optimizer: Any) -> None:
        hook = OptimizerHook.of(optimizer)
        change = functools.partial(method, self, optimizer)
        if isinstance(hook, UpdateHook) and hook.sharded is not None:
            _meet(optimizer, hook.process_set)
            hook.sharded.change_averages(change)
        else:
            change()

    return run


def _meet(optimizer: keras.optimizers.Optimizer, process_set: ProcessSet) -> None:
    """All ranks are about to swap, and none has changed a weight yet; collective.

    Raises:
        CommunicationError: If one does not come; it says what to do outside of `fit`,
            in which the ranks have compared their callbacks.
    """
    try:
        _native.allreduce(
            np.zeros(1, np.int32),
            op=ReduceOp.MAX.value,
            name="optimizer/swaps",
            communicator_id=process_set.communicator_id(),
            # A rank that fails elsewhere in its `fit` has the others leave this.
            precedes_step=True,
        )
    except (PeerLostError, CollectiveTimeoutError) as error:
        if any(call.method == "fit" for call in calls_under_way()):
            raise
        raise type(error)(
            "[RK684] "
            f"the averages of optimizer '{optimizer.name}' are divided among the ranks "
            "(shard_state=True), and not all of them have come to swap them with the "
            "weights. Call evaluate(callbacks=[SwapEMAWeights()]) on every rank, "
            f"without `if ring.rank() == 0:`. {error}"
        ) from error


def swaps_of(
    callbacks: Sequence[keras.callbacks.Callback], model: keras.Model
) -> list[bool]:
    """In plain values: the callbacks in which the ranks meet; each `swap_on_epoch`."""
    return [
        callback.swap_on_epoch
        for callback in callbacks
        if isinstance(callback, keras.callbacks.SwapEMAWeights) and shards_state(model)
    ]


def require_same_swaps(
    everyones: Sequence[list[bool]], validate: Sequence[bool], process_set: ProcessSet
) -> None:
    """Raises if a rank would swap, together with all others, when some do not.

    Args:
        everyones: For each rank of the process set: `swaps_of`.
        validate: Whether each rank has validation data.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank.
    """
    ranks = process_set.ranks
    why = ""
    for other, theirs in zip(ranks, everyones, strict=True):
        if theirs != everyones[0]:
            why = f"ranks {ranks[0]} and {other} have not the same SwapEMAWeights"
    if not why and everyones[0] and len(set(validate)) > 1:
        some = list(itertools.compress(ranks, validate))
        why = f"only ranks {some} have validation_data, before which they swap"
    if why:
        raise RankMismatchError(
            "[RK833] "
            "with shard_state=True the ranks swap weights and averages together, but "
            f"{why}. Give every rank the same callback, and all ranks validation_data "
            "or none."
        )
