"""Callbacks where ranks divide the state of an optimizer: all of them save together."""

from collections.abc import Sequence

import keras

from ring_keras.callbacks.best_model_checkpoint import BestModelCheckpoint
from ring_keras.callbacks.root_only import RootOnly
from ring_keras.optimizers.hooking import shards_state

__all__ = ["refuse_savers_of_one_rank", "refuse_with_sharded_state"]

# Keras's: one has a directory whose files it renames, which one rank must do, and one
# puts the optimizer's averages into the model itself.
_REFUSED = ("BackupAndRestore", "SwapEMAWeights")


def refuse_savers_of_one_rank(
    callbacks: Sequence[keras.callbacks.Callback], model: keras.Model
) -> None:
    """Raises if one of these would save a part of the state, or needs all of it.

    Raises:
        ValueError: Before anything is trained.
    """
    for callback in callbacks:
        inside = callback.callback if isinstance(callback, RootOnly) else callback
        alone = isinstance(callback, RootOnly) or isinstance(
            inside, BestModelCheckpoint
        )
        if isinstance(inside, keras.callbacks.ModelCheckpoint) and alone:
            refuse_with_sharded_state(
                model, f"{type(callback).__name__}, which saves on one rank,"
            )
        for name in _REFUSED:
            # Older Keras has not all.
            if isinstance(inside, getattr(keras.callbacks, name, ())):
                refuse_with_sharded_state(model, name)


def refuse_with_sharded_state(model: keras.Model, name: str) -> None:
    """Raises if ranks divide the state of one of the model's optimizers."""
    if shards_state(model):
        raise ValueError(
            "[RK336] "
            f"{name} does not work with an optimizer with shard_state=True, for now: "
            "each rank has a part of the state. Save by a keras.callbacks."
            "ModelCheckpoint on every rank, not in RootOnly, or leave out shard_state."
        )
