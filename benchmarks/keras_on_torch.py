"""Steps of Keras's `fit` on torch: ours, through DDP over gloo, and alone.

`KERAS_BACKEND=torch ringrun -np 2 python benchmarks/keras_on_torch.py`. They take turns
in the same processes. Alone, each rank trains for itself. A model with a `train_step`
of its own has its gradients travel when backward is over. Prints Markdown.

`KERAS_BACKEND=torch python -m benchmarks.keras_on_torch --links 1gbit`, as root, starts
two ranks on hosts of their own, whose links are as fast as that.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ring_keras as ring

LIMIT_S = 600.0
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


class AfterBackward(keras.Model):
    """Whose gradients travel then."""

    def train_step(self, data: Any) -> Any:
        """As `keras.Model` has it."""
        return super().train_step(data)


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


WAYS: dict[str, type[keras.Model]] = {
    "alone": keras.Model,
    "ring_keras": keras.Model,
    "ring_keras, after backward": AfterBackward,
    "DDP, gloo": ThroughDdp,
}
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
    model = WAYS[way](inputs, outputs)
    optimizer = keras.optimizers.Adam(0.001)
    if way.startswith("ring_keras"):
        optimizer = ring.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def seconds_of(model: keras.Model, x: Any, y: Any) -> list[float]:
    """Of each step of a `fit`, but the first."""
    stamps = Stamps()
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=[stamps])
    return [after - before for before, after in itertools.pairwise(stamps.times)]


def run_on_links(rate: str, rounds: int) -> str:
    """What the first of two ranks prints, on hosts with links of that rate."""
    from benchmarks.scaling.launch import run_on_hosts
    from benchmarks.slow_links.links import make_hosts

    with make_hosts(2, rate) as network, tempfile.NamedTemporaryFile("r") as result:
        run_on_hosts(
            network,
            hosts=2,
            per_host=1,
            arguments=[__file__, "--rounds", str(rounds), "--into", result.name],
            environment={
                "PYTHONPATH": os.pathsep.join(sys.path),
                "BENCHMARK_ADDRESS": network.addresses[0],
                "GLOO_SOCKET_IFNAME": "eth0",
                "KERAS_BACKEND": "torch",
            },
            timeout_s=LIMIT_S,
        )
        return result.read()


def main() -> None:
    """Prints a row for each model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--links", metavar="RATE", help="as tc takes it: 1gbit")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--into", type=Path, default=Path("/dev/stdout"))
    options = parser.parse_args()
    if options.links:
        print(run_on_links(options.links, options.rounds), end="")
        return
    rows = [*measured_rows(options.rounds)]
    if ring.rank() == 0:
        options.into.write_text("\n".join(rows) + "\n", encoding="utf-8")
    dist.destroy_process_group()


def measured_rows(rounds: int) -> Iterator[str]:
    """Of the table, on all ranks."""
    ring.init()
    torch.set_num_threads(1)
    host = os.environ.get("BENCHMARK_ADDRESS", "127.0.0.1")
    address = ring.broadcast_object(f"tcp://{host}:{20000 + os.getpid() % 20000}")
    dist.init_process_group(
        "gloo", init_method=address, rank=ring.rank(), world_size=ring.size()
    )
    numbers = np.random.default_rng(ring.rank())
    x = numbers.normal(size=(BATCH * STEPS, 784)).astype("float32")
    y = numbers.integers(10, size=len(x))
    yield f"| ms a step, {ring.size()} ranks | {' | '.join(WAYS)} |"
    yield "|---|" + "---|" * len(WAYS)
    for name, widths in MODELS.items():
        models = {way: model_of(widths, way) for way in WAYS}
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(rounds + 1):  # The first warms up.
            for way, model in models.items():
                dist.barrier()
                seconds = seconds_of(model, x, y)
                if number:
                    found[way].append(statistics.median(seconds))
        cells = " | ".join(f"{statistics.median(found[way]) * 1e3:.2f}" for way in WAYS)
        yield f"| {name} | {cells} |"


if __name__ == "__main__":
    main()
