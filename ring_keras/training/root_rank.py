"""The rank whose state the others take in a `fit`."""

from collections.abc import Iterable, Sequence

import keras

__all__ = ["root_of"]


def root_of(callbacks: Iterable[keras.callbacks.Callback], ranks: Sequence[int]) -> int:
    """The one of these ranks whose state all take: it writes their files, and reads.

    Args:
        callbacks: Of a `fit`. `BroadcastGlobalVariables` comes before `Distributed`,
            and that before `Preemption`.
        ranks: That train together.
    """
    callbacks = list(callbacks)
    # Which they say themselves.
    for names_it in ("begins_alike", "adopts_optimizers", "restores_for_all"):
        for one in callbacks:
            root: int | None = getattr(one, "root_rank", None)
            if root is not None and getattr(one, names_it, False):
                return root
    return ranks[0]
