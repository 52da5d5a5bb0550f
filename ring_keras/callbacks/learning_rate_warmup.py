"""Reaches the learning rate of a large batch gradually."""

from typing import Any

from ring_keras.callbacks.learning_rate_rule import LearningRateRule
from ring_keras.job.topology import rank

__all__ = ["LearningRateWarmup"]


class LearningRateWarmup(LearningRateRule):
    """Ramps the learning rate from `base_lr` to `scale * base_lr`.

    With n ranks the global batch is n times as large, and the rate should grow with it,
    but not in the first steps. After the ramp, this callback no longer sets the rate;
    others may. Source: Goyal et al. 2017, section 2.2, arXiv:1706.02677.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[ring.callbacks.LearningRateWarmup(0.1, warmup_steps=3)])
        >>> float(model.optimizer.learning_rate.numpy())
        0.2...

    Args:
        base_lr: Learning rate tuned for one rank.
        warmup_steps: Length of the ramp, in updates of the optimizer. Give this or
            `warmup_epochs`. With `gradient_accumulation_steps=n` (or
            `backward_passes_per_step=n`), there is one update in n batches.
        warmup_epochs: Length of the ramp, in epochs.
        momentum_correction: Whether to scale the momentum of `SGD` and `RMSprop`
            along with the rate.
        steps_per_epoch: For `warmup_epochs`. Defaults to the number that `fit` knows.
        scale: Factor at the end of the ramp. Defaults to the number of ranks
            that train the model.
        verbose: 1 to say, on rank 0, that the ramp is over.
    """

    def __init__(
        self,
        base_lr: float,
        warmup_steps: int | None = None,
        *,
        warmup_epochs: float | None = None,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        scale: float | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(momentum_correction)
        if (warmup_steps is None) == (warmup_epochs is None):
            raise ValueError(
                "LearningRateWarmup takes either `warmup_steps` or `warmup_epochs`. "
                f"Received: warmup_steps={warmup_steps}, warmup_epochs={warmup_epochs}"
            )
        for name, value in (
            ("warmup_steps", warmup_steps),
            ("warmup_epochs", warmup_epochs),
        ):
            if value is not None and value <= 0:
                raise ValueError(f"`{name}` must be positive. Received: {name}={value}")
        self.base_lr = base_lr
        self.warmup_steps = warmup_steps
        self.warmup_epochs = warmup_epochs
        self.steps_per_epoch = steps_per_epoch
        self.scale = scale
        self.verbose = verbose
        self._ramping = False

    @property
    def counts_epochs(self) -> bool:
        """Whether the ramp has a length in epochs."""
        return self.warmup_epochs is not None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes whether the ramp goes on in this epoch."""
        super().on_epoch_begin(epoch, logs)
        self._ramping = not self._is_over()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Says in whose epoch the ramp has ended."""
        super().on_epoch_end(epoch, logs)
        ranks = self.process_set().ranks
        if self.verbose and self._ramping and self._is_over() and rank() == ranks[0]:
            rate = self.learning_rate()
            print(f"Epoch {epoch + 1}: the learning rate has warmed up to {rate:g}.")

    def learning_rate_at(self, step: int) -> float | None:
        """The rate after `step` steps; None once the ramp is over."""
        done, length = self._place(step)
        if done > length:
            return None
        scale = self.process_set().size() if self.scale is None else self.scale
        return self.base_lr * (1.0 + done / length * (scale - 1.0))

    def _place(self, step: int) -> tuple[int, float]:
        """How many updates, or steps, are done after that one; of how many."""
        if self.warmup_steps is not None:
            return step // self.steps_per_update(), self.warmup_steps
        assert self.warmup_epochs is not None
        length = self.warmup_epochs * self.known_steps_per_epoch()
        return self.steps_since_first_epoch(step), length

    def _is_over(self) -> bool:
        done, length = self._place(self.steps_taken())
        return done >= length
