"""Multiplies the learning rate by a function of the epoch."""

import math
from collections.abc import Callable

from ring_keras.callbacks.learning_rate_rule import LearningRateRule

__all__ = ["LearningRateSchedule"]


class LearningRateSchedule(LearningRateRule):
    """Sets the rate to `scale * base_lr * multiplier(epoch)` in some epochs.

    Several such callbacks can follow each other, and a `LearningRateWarmup` can precede
    them, each in its own epochs. The epoch is computed from the number of steps that
    the optimizer has taken, so a second `fit` continues where the first one ended. With
    `fit(initial_epoch=)`, or a restored epoch, epochs are those of `fit`.

    Examples:
        Twice the rate of one rank, and a tenth of that from epoch 30 on:

        >>> schedule = [
        ...     ring.callbacks.LearningRateSchedule(0.1, 1.0, end_epoch=30),
        ...     ring.callbacks.LearningRateSchedule(0.1, 0.1, start_epoch=30),
        ... ]
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[*schedule])
        >>> float(model.optimizer.learning_rate.numpy())
        0.2...

    Args:
        base_lr: Learning rate tuned for one rank.
        multiplier: A number, or a function of the epoch.
        start_epoch: The first epoch to which it applies.
        end_epoch: The first epoch to which it no longer applies. None: it has no end.
        staircase: Whether `multiplier` sees whole epochs. Otherwise it is
            called for every step with a fraction, such as 2.75.
        momentum_correction: Whether to scale the momentum of `SGD` and `RMSprop`
            along with the rate.
        steps_per_epoch: Defaults to the number that `fit` knows.
        scale: Factor for the whole job. Defaults to the number of ranks
            that train the model.
    """

    def __init__(
        self,
        base_lr: float,
        multiplier: float | Callable[[float], float],
        *,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(momentum_correction)
        if end_epoch is not None and end_epoch <= start_epoch:
            raise ValueError(
                "`end_epoch` must be greater than `start_epoch`. Received: "
                f"start_epoch={start_epoch}, end_epoch={end_epoch}"
            )
        self.base_lr = base_lr
        self.multiplier = multiplier
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.steps_per_epoch = steps_per_epoch
        self.scale = scale

    def learning_rate_at(self, step: int) -> float | None:
        """The rate after `step` steps; None outside of the epochs."""
        steps = self.steps_since_first_epoch(step)
        epoch = steps / self.known_steps_per_epoch()
        if epoch < self.start_epoch:
            return None
        if self.end_epoch is not None and epoch >= self.end_epoch:
            return None
        if callable(self.multiplier):
            factor = self.multiplier(math.floor(epoch) if self.staircase else epoch)
        else:
            factor = self.multiplier
        scale = self.process_set().size() if self.scale is None else self.scale
        return self.base_lr * scale * factor
