"""Steps of Keras's `fit` on JAX: ours, by `keras.distribution` over gloo, and alone.

`python benchmarks/keras_on_jax.py [ranks]`, where there is JAX. The three take turns,
each as a job of its own: JAX makes one program of all processes once for ever. Alone,
each rank trains for itself. Prints Markdown.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

ROUNDS = 7
STEPS = 40
BATCH = 64
WAYS = ["alone", "ring_keras", "keras.distribution, gloo"]
MODELS: dict[str, list[int]] = {
    "6.3 million weights": [784, 2048, 2048, 256, 10],
    "0.2 million weights": [784, 256, 64, 10],
}


def main(ranks: int) -> None:
    """Prints a row for each model."""
    found: dict[str, dict[str, list[float]]] = {
        name: {way: [] for way in WAYS} for name in MODELS
    }
    for way in WAYS * ROUNDS:
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "ring_keras.launch", "-np", str(ranks)),
                *(sys.executable, __file__, "--way", way),
            ],
            env=os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
            check=True,
        )
        line = next(line for line in ended.stdout.splitlines() if "{" in line)
        for name, seconds in json.loads(line[line.index("{") :]).items():
            found[name][way].append(seconds)
    print(f"| ms a step, {ranks} ranks | {' | '.join(WAYS)} |")
    print("|---|---|---|---|")
    for name, of_ways in found.items():
        cells = (f"{statistics.median(of_ways[way]) * 1e3:.2f}" for way in WAYS)
        print(f"| {name} | {' | '.join(cells)} |")


def rank(way: str) -> None:
    """One of a job; the first prints a step's seconds for each model."""
    import jax
    import numpy as np

    import ring_keras as ring

    ring.init()
    is_distributed = way.startswith("keras")
    if is_distributed:
        address = ring.broadcast_object(f"127.0.0.1:{20000 + os.getpid() % 20000}")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, ring.size(), ring.rank())
    import keras

    if is_distributed:
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(
                devices=keras.distribution.list_devices(), auto_shard_dataset=False
            )
        )

    class Stamps(keras.callbacks.Callback):  # type: ignore[misc]
        """When steps end; the last of the callbacks."""

        times: list[float] = []  # noqa: RUF012  One at a time.

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            # Keras's own steps may still run.
            jax.block_until_ready(logs)
            self.times.append(time.perf_counter())

    numbers = np.random.default_rng(ring.rank())
    x = numbers.normal(size=(BATCH * STEPS, 784)).astype("float32")
    y = numbers.integers(10, size=len(x))
    seconds = {}
    for name, widths in MODELS.items():
        keras.utils.set_random_seed(1)
        hidden = inputs = keras.Input((widths[0],))
        for units in widths[1:-1]:
            hidden = keras.layers.Dense(units, activation="relu")(hidden)
        model = keras.Model(inputs, keras.layers.Dense(widths[-1])(hidden))
        optimizer = keras.optimizers.Adam(0.001)
        if way == "ring_keras":
            optimizer = ring.DistributedOptimizer(optimizer)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss)
        for _ in range(2):  # The first compiles.
            Stamps.times = []
            ring.allgather_object(None)
            model.fit(
                x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=[Stamps()]
            )
        steps = [b - a for a, b in itertools.pairwise(Stamps.times)]
        seconds[name] = statistics.median(steps)
    if ring.rank() == 0:
        print(json.dumps(seconds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        rank(sys.argv[2])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 2)
