"""Starts every rank from the same state."""

from collections.abc import Iterable
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.callbacks.fit_side import CommonBeginning, fit_side

__all__ = ["BroadcastGlobalVariables"]


class BroadcastGlobalVariables(keras.callbacks.Callback):
    """Copies one rank's weights and optimizer state to all, before step 1.

    Variables that a model creates at its first batch are created before the broadcast,
    so the first step, too, runs with equal weights. The broadcast treats these cases
    separately:

    - Layers that compute with constants derived from their variables, such as
      `Normalization`, derive them again. Vocabularies and bin boundaries must be the
      same on all ranks.
    - The model's random generators must draw different numbers on each rank. If their
      seeds are the same, all ranks but the first get other seeds.
    - Gradients that a rank has accumulated for its next update stay its own.

    It also prepares the rest of a common start:

    - An optimizer that is not distributed yet, such as a loaded model's, becomes
      distributed.
    - All ranks begin with the root's epoch, also if another callback restored it, such
      as `keras.callbacks.BackupAndRestore`, wherever that is in the list.
    - A warning names files that several ranks are about to write.
    - Ranks that would run different numbers of steps, or that have different
      callbacks, raise an error instead of waiting for each other: at once, or where the
      first rank ends if the number of steps is unknown. All callbacks of this package
      that communicate check this.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[ring.callbacks.BroadcastGlobalVariables(root_rank=1)])

    Args:
        root_rank: The rank whose state all ranks take.
        local_variables: Variables that stay as they are on each rank. Those of the
            optimizers' `local_layers` stay as they are, too.
    """

    ranks_meet_in = ("fit",)
    begins_alike = True
    adopts_optimizers = True

    def __init__(
        self, root_rank: int = 0, *, local_variables: Iterable[Any] = ()
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.local_keys = {internals.variable_key(v) for v in local_variables}
        """Of the `local_variables`."""
        self._beginning: CommonBeginning | None = None
        fit_side().prepare_callbacks()

    @property
    def is_plain(self) -> bool:
        """Whether all ranks take all variables, from rank 0."""
        return self.root_rank == 0 and not self.local_keys

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Prepares the broadcast, for when all callbacks have begun."""
        self._beginning = fit_side().begin_alike(self, self.root_rank, self.local_keys)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Where `fit` had no step to take, as after a restored last one."""
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            beginning.end()
