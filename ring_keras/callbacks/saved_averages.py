"""Callbacks that would save averages as the weights from which training continues."""

from collections.abc import Sequence

import keras

from ring_keras.errors import RingKerasError

__all__ = ["refuse_backups_of_averages", "refuse_saved_averages"]


def refuse_backups_of_averages(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raises if a `BackupAndRestore` would save averages as weights.

    Args:
        callbacks: Of a `fit`, in their order.

    Raises:
        RingKerasError: Before anything is trained.
    """
    for callback in callbacks:
        inside = _inside(callback)
        # After so many batches it saves while the weights are in the model.
        if (
            isinstance(inside, keras.callbacks.BackupAndRestore)
            and inside.save_freq == "epoch"
        ):
            refuse_saved_averages(callback, callbacks)


def refuse_saved_averages(
    saver: keras.callbacks.Callback, callbacks: Sequence[keras.callbacks.Callback]
) -> None:
    """Raises if a callback would save averages at the end of an epoch.

    Args:
        saver: What it has saved, the next start trains on.
        callbacks: Of its `fit`, in their order.

    Raises:
        RingKerasError: If `SwapEMAWeights` has put them into the model by then.
    """
    for callback in callbacks[: callbacks.index(saver)]:
        inside = _inside(callback)
        if isinstance(inside, keras.callbacks.SwapEMAWeights) and getattr(
            inside, "swap_on_epoch", False
        ):
            name = type(_inside(saver)).__name__
            raise RingKerasError(
                "[RK516] "
                f"{name} would save the averages that SwapEMAWeights puts into the "
                "model at the end of an epoch, and training would continue from "
                f"these. List {name} before it."
            )


def _inside(callback: keras.callbacks.Callback) -> keras.callbacks.Callback:
    inside: keras.callbacks.Callback = getattr(callback, "callback", callback)
    return inside  # Of RootOnly.
