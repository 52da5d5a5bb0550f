"""Reaches the learning rate of a large batch gradually, as a schedule."""

from typing import Any

import keras

from ring_keras.job.topology import size

__all__ = ["Warmup"]


@keras.saving.register_keras_serializable("ring_keras")
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Ramps a rate, or another schedule, from its own value to `scale` times it.

    It does the same as `ring_keras.callbacks.LearningRateWarmup`, as a part of the
    optimizer. So it is saved with the model, needs no callback in your own training
    loop, and can wrap any schedule:

    ```python
    decay = keras.optimizers.schedules.CosineDecay(0.1, 10_000)
    optimizer = keras.optimizers.SGD(ring.schedules.Warmup(decay, 500))
    ```

    Unlike the callback, it does not correct momentum, because a schedule knows only the
    step. The step is the number of batches, as in all schedules of Keras: with
    `gradient_accumulation_steps=n` there is one update in n batches.

    A model that was compiled with it can be loaded after `import ring_keras` and
    `ring_keras.init()`, or with `compile=False`.

    Examples:
        >>> schedule = ring.schedules.Warmup(0.1, warmup_steps=10)
        >>> [round(float(schedule(step)), 3) for step in (0, 5, 10)]
        [0.1, 0.15, 0.2]

    Args:
        learning_rate: Rate tuned for one rank: a number or a schedule.
        warmup_steps: Length of the ramp, in batches; 0 for none.
        scale: Factor after the ramp. Defaults to the number of ranks at its creation,
            which a saved file keeps.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        warmup_steps: int,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if warmup_steps < 0:
            raise ValueError(
                "`warmup_steps` must not be negative. "
                f"Received: warmup_steps={warmup_steps}"
            )
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.scale = float(size() if scale is None else scale)

    def __call__(self, step: Any) -> Any:
        """The rate for the step after `step` others."""
        rate = self.learning_rate
        if callable(rate):
            rate = rate(step)
        rate = keras.ops.cast(rate, "float32")
        if not self.warmup_steps:
            return rate * self.scale
        done = keras.ops.cast(step, "float32") / self.warmup_steps
        return rate * (1.0 + keras.ops.minimum(done, 1.0) * (self.scale - 1.0))

    def get_config(self) -> dict[str, Any]:
        """What `from_config` takes."""
        return {
            "learning_rate": keras.saving.serialize_keras_object(self.learning_rate),
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Warmup":
        """Makes one from what `get_config` returned."""
        rate = keras.saving.deserialize_keras_object(config["learning_rate"])
        return cls(**{**config, "learning_rate": rate})
