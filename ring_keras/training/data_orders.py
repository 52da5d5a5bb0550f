"""The orders in which a call of `fit` passes over its data: one for each epoch."""

from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.keras_internals import calls
from ring_keras.ops.data_order import order_on

__all__ = ["DataOrders", "OrdersOfOneRank"]


class DataOrders:
    """Those of the datasets below what the call was given.

    Args:
        run: The call; None if it is not known.
    """

    def __init__(self, run: calls.Run | None = None) -> None:
        found = [] if run is None else map(order_on, internals.upstream(run.data))
        self._orders = [order for order in found if order is not None]
        self._keeps_iterator = run is not None and run.keeps_iterator
        self._has_begun = False

    @property
    def any(self) -> bool:
        """Whether there are some."""
        return bool(self._orders)

    @property
    def given(self) -> list[Any]:
        """Those that data have from elsewhere, and that can only be watched."""
        return [order for order in self._orders if order.is_given]

    @property
    def follow_epochs(self) -> bool:
        """Whether each epoch is a pass, which is read as its steps are taken."""
        return not self._keeps_iterator

    def require_whole_epochs(
        self, batches: float | str | None, steps: int | None
    ) -> None:
        """Refuses epochs that end within data whose order changes with the epoch.

        Args:
            batches: How many the data have.
            steps: How many steps an epoch has.

        Raises:
            ValueError: If so.
        """
        if self.follow_epochs or batches in (None, steps):
            return
        if any(order.changes_with_epochs for order in self._orders):
            raise ValueError(
                "[RK510] ring_keras.data.shard(seed=...) puts the batches of a "
                "PyDataset in another order in each epoch. Received: steps_per_epoch="
                f"{steps}, with {batches} batches: epochs would end within the data, "
                "and some batches would be trained on twice, others never. Leave out "
                "steps_per_epoch, or the seed."
            )

    def begin_epoch(self, epoch: int) -> None:
        """Before its data begin to be read."""
        if self.follow_epochs or not self._has_begun:
            self.set_epoch(epoch)
        self._has_begun = True

    def set_epoch(self, epoch: int) -> None:
        """The next pass over the data has the order of that epoch."""
        for order in self._orders:
            order.set_epoch(epoch)


class OrdersOfOneRank(keras.callbacks.Callback):
    """Gives each epoch of a `fit` on one rank the order that it has on several."""

    def __init__(self) -> None:
        super().__init__()
        self._orders = DataOrders()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """The list may be the user's own, and have served another call."""
        run = calls.calling_run(self.model)
        self._orders = DataOrders(run)
        if run is not None:
            steps = (self.params or {}).get("steps")
            self._orders.require_whole_epochs(run.batch_count(), steps)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Data begin to be read after this."""
        self._orders.begin_epoch(epoch)
