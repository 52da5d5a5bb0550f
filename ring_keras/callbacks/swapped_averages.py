"""`keras.callbacks.SwapEMAWeights` where each rank has some of the averages."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.hooking import shards_state
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.update_hook import UpdateHook

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
            hook.sharded.change_averages(change)
        else:
            change()

    return run


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
