"""Steps of Keras's `fit` on torch: ours, through DDP over gloo, and alone.

`KERAS_BACKEND=torch ringrun -np 2 python benchmarks/keras_on_torch.py`. The three take
turns in the same processes. Alone, each rank trains for itself. Prints Markdown.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from typing import Any

import keras
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ring_keras as ring

ROUNDS = 9
STEPS = 12
BATCH = 64


class Stamps(keras.callbacks.Callback):
    """When steps end; the last of the callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """One has."""
        self.times.append(time.perf_counter())


class ThroughDdp(keras.Model):
    """Keras's own step, whose forward pass is that of DDP."""

    def train_step(self, data: Any) -> Any:
        """As `keras.Model` has it, on torch."""
        x, y = data
        ddp = vars(self).get("ddp")
        if ddp is None:
            ddp = self.__dict__["ddp"] = DistributedDataParallel(
                self, gradient_as_bucket_view=True
            )
        self.zero_grad()
        loss = self._compute_loss(x=x, y=y, y_pred=ddp(x), training=True)
        self._loss_tracker.update_state(loss, sample_weight=len(x))
        loss.backward()
        weights = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([w.value.grad for w in weights], weights)
        return {"loss": self._loss_tracker.result()}


MODELS: dict[str, list[int]] = {
    "6.3 million weights": [784, 2048, 2048, 256, 10],
    "0.2 million weights": [784, 256, 64, 10],
}


def model_of(widths: list[int], way: str) -> keras.Model:
    """One that is compiled."""
    keras.utils.set_random_seed(1)
    hidden = inputs = keras.Input((widths[0],))
    for units in widths[1:-1]:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    outputs = keras.layers.Dense(widths[-1])(hidden)
    cls = ThroughDdp if way == "DDP, gloo" else keras.Model
    model = cls(inputs, outputs)
    optimizer = keras.optimizers.Adam(0.001)
    if way == "ring_keras":
        optimizer = ring.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def seconds_of(model: keras.Model, x: Any, y: Any) -> list[float]:
    """Of each step of a `fit`, but the first."""
    stamps = Stamps()
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=[stamps])
    return [after - before for before, after in itertools.pairwise(stamps.times)]


def main() -> None:
    """Prints a row for each model."""
    ring.init()
    torch.set_num_threads(1)
    address = ring.broadcast_object(f"tcp://127.0.0.1:{20000 + os.getpid() % 20000}")
    dist.init_process_group(
        "gloo", init_method=address, rank=ring.rank(), world_size=ring.size()
    )
    numbers = np.random.default_rng(ring.rank())
    x = numbers.normal(size=(BATCH * STEPS, 784)).astype("float32")
    y = numbers.integers(10, size=len(x))
    ways = ["alone", "ring_keras", "DDP, gloo"]
    if ring.rank() == 0:
        print(f"| ms a step, {ring.size()} ranks | {' | '.join(ways)} |")
        print("|---|---|---|---|")
    for name, widths in MODELS.items():
        models = {way: model_of(widths, way) for way in ways}
        found: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(ROUNDS + 1):  # The first warms up.
            for way, model in models.items():
                dist.barrier()
                seconds = seconds_of(model, x, y)
                if number:
                    found[way].append(statistics.median(seconds))
        if ring.rank() == 0:
            cells = " | ".join(
                f"{statistics.median(found[way]) * 1e3:.2f}" for way in ways
            )
            print(f"| {name} | {cells} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
