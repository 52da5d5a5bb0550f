"""Steps of `fit` on data of `ring_keras.data.join`, on Keras's back ends torch and JAX.

`KERAS_BACKEND=torch ringrun -np 2 python benchmarks/joined_steps.py`, or `jax`. The
ways take turns in the same processes. Prints Markdown.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import keras
import numpy as np

import ring_keras as ring

ROUNDS = 9
STEPS = 12
BATCH = 64
# What follows the end of a rank's data, which JAX compiles anew in the first round.
FIRST = 3

WAYS = ["as they are", "joined", "joined, the last rank has one batch"]
MODELS: dict[str, list[int]] = {
    "6.3 million weights": [784, 2048, 2048, 256, 10],
    "0.2 million weights": [784, 256, 64, 10],
}


class Stamps(keras.callbacks.Callback):
    """When steps end; the last of the callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """One has."""
        self.times.append(time.perf_counter())


def model_of(widths: list[int]) -> keras.Model:
    """One that is compiled."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((widths[0],)),
            *(keras.layers.Dense(units, "relu") for units in widths[1:-1]),
            keras.layers.Dense(widths[-1]),
        ]
    )
    optimizer = ring.DistributedOptimizer(keras.optimizers.Adam(0.001))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def data_of(way: str) -> tuple[Any, Any]:
    """This rank's."""
    ends_early = way == WAYS[-1] and ring.rank() == ring.size() - 1
    rows = BATCH * (1 if ends_early else STEPS)
    numbers = np.random.default_rng(ring.rank())
    x = numbers.normal(size=(rows, 784)).astype("float32")
    data = x, numbers.integers(10, size=rows)
    return data if way == WAYS[0] else ring.data.join(data)


def seconds_of(model: keras.Model, data: tuple[Any, Any]) -> float:
    """The median of the later steps of a `fit`."""
    stamps = Stamps()
    model.fit(*data, batch_size=BATCH, verbose=0, shuffle=False, callbacks=[stamps])
    steps = [after - before for before, after in itertools.pairwise(stamps.times)]
    return statistics.median(steps[FIRST:])


def main() -> None:
    """Prints a row for each model."""
    ring.init()
    if ring.rank() == 0:
        print(f"| ms a step, {ring.size()} ranks | {' | '.join(WAYS)} |")
        print("|---|---|---|---|")
    data = {way: data_of(way) for way in WAYS}
    for name, widths in MODELS.items():
        models = {way: model_of(widths) for way in WAYS}
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(ROUNDS + 1):  # The first warms up.
            for way, model in models.items():
                ring.barrier()
                seconds = seconds_of(model, data[way])
                if number:
                    found[way].append(seconds)
        if ring.rank() == 0:
            cells = " | ".join(
                f"{statistics.median(found[way]) * 1e3:.2f}" for way in WAYS
            )
            print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
