"""A drawn program in one process, on the batches of all ranks."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.fits import references
from support.fits.data import (
    BATCH,
    Batches,
    Data,
    as_arguments,
    batches_of_all,
    dataset_of,
    generated,
)
from support.fits.job import Job

__all__ = ["Alone", "AloneWithLoss"]


class Alone(Job):
    """One process.

    Args:
        size: Of the job that it stands for.
        directory: For its files.
        mixed: Whether the examples of each batch come in another order, which changes
            nothing but the order of sums.
    """

    seed = 1
    initial_scale = 2.0**15

    def __init__(
        self,
        size: int,
        directory: Path,
        *,
        mixed: bool = False,
    ) -> None:
        super().__init__(size, directory)
        self._mixed = mixed
        self.tape = tf.GradientTape

    def optimizer(self, optimizer: Any, **options: Any) -> Any:
        """As it is."""
        return optimizer

    def local_layer(self, units: int) -> keras.layers.Layer:
        """One that has the weights of all ranks."""
        return references.LayerOfEachRank(units, self.size)

    def accumulation(self, steps: int) -> dict[str, int]:
        """Keras's own."""
        return {"gradient_accumulation_steps": steps}

    def prepare(self, model: keras.Model) -> None:
        """Nothing."""

    def callbacks(
        self, callbacks: list[Any], *, order: int, ours: bool
    ) -> list[keras.callbacks.Callback]:
        """Keras's, in the same order."""
        found = [*callbacks, None, None] if ours else list(callbacks)
        random.Random(order).shuffle(found)
        return [callback for callback in found if callback is not None]

    def warmup(self, rate: float, steps: int) -> keras.callbacks.Callback:
        """The same ramp, told otherwise."""
        return references.Ramp(rate, steps, self.size)

    def rate_schedule(
        self, rate: float, multiplier: Callable[[float], float]
    ) -> keras.callbacks.Callback:
        """The same rates."""
        return references.Rates(rate * self.size, multiplier)

    def best_checkpoint(self, name: str) -> keras.callbacks.Callback:
        """Keras's."""
        return keras.callbacks.ModelCheckpoint(
            self.path(name), monitor="loss", save_best_only=True
        )

    def inferred(self, model: keras.Model, data: Data, by: str) -> tuple[Any, Any]:
        """By Keras."""
        batch = BATCH * self.size
        logs = model.evaluate(
            **as_arguments(data.parts()), batch_size=batch, verbose=0, return_dict=True
        )
        return logs, model.predict(data.x, batch_size=batch, verbose=0)

    def build(self, model: keras.Model, data: Data) -> None:
        """Makes all variables now, and notes their values."""
        model(data.first_rows)
        optimizer: Any = model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        if not self._start:
            self._start = [np.array(weight) for weight in model.weights]

    def given(self, data: Data) -> tuple[Any, int]:
        """What all ranks train on, and the size of their batches together."""
        batch = BATCH * self.size
        if data.kind == "generator":
            batches = batches_of_all(data, self.size)
            if self._mixed:
                batches = [references.mixed(parts) for parts in batches]
            joined = data.remainder == "join"
            given = generated(batches) if joined else (parts for parts in batches)
            return given, batch
        ours = data.rows(self._rows(data))
        if data.kind == "arrays":
            return ours.parts(), batch
        if data.kind == "PyDataset":
            return Batches(ours.parts(), batch), batch
        dataset = dataset_of(ours).batch(batch)
        return (dataset.repeat() if data.repeat else dataset), batch

    def trained(self, model: keras.Model, epochs: int, options: Any) -> Any:
        """As `fit` does; epoch by epoch where they have other batches."""
        rates = (references.Ramp, references.Rates)
        if any(isinstance(callback, rates) for callback in options["callbacks"]):
            model.steps_per_execution = 1  # Each step has a rate.
        return super().trained(model, epochs, options)

    def validation_data(self, others: Data, kind: str) -> dict[str, Any]:
        """All of them."""
        dataset = tf.data.Dataset.from_tensor_slices(others.parts())
        return {"validation_data": dataset.batch(BATCH * self.size)}

    def _rows(self, data: Data) -> np.ndarray:
        """Those that the ranks train on."""
        count = data.count
        if data.remainder == "drop":
            # Of a PyDataset, ranks share whole batches.
            unit = BATCH * self.size if data.kind == "PyDataset" else self.size
            if data.kind == "PyDataset":
                whole = -(-count // BATCH) // self.size * self.size
                count = min(count, whole * BATCH)
            else:
                count -= count % unit
        order = np.arange(count)
        if self._mixed:
            generator = np.random.default_rng(0)
            batch = BATCH * self.size
            for start in range(0, count, batch):
                generator.shuffle(order[start : start + batch])
        return order


class AloneWithLoss(Alone):
    """One process, in place of ranks of which one was lost.

    Args:
        size: Of the job before.
        directory: For its files.
        lost: The epoch, and the step in it, before which that was.
        mixed: As of `Alone`.
    """

    def __init__(
        self, size: int, directory: Path, lost: tuple[int, int], *, mixed: bool = False
    ) -> None:
        super().__init__(size, directory, mixed=mixed)
        self._lost = lost

    def given(self, data: Data) -> tuple[Any, int]:
        """A dataset for each epoch, which differ in their batches."""
        batches = functools.partial(
            references.with_loss, data, self.size, is_mixed=self._mixed
        )
        return batches, BATCH * self.size

    def trained(self, model: keras.Model, epochs: int, options: Any) -> Any:
        """Epoch by epoch."""
        batches = options.pop("x")
        inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        passes = getattr(inner, "gradient_accumulation_steps", None) or 1
        # Executions are repeated since the last one that has ended with an update.
        repeated = math.lcm(passes, model.steps_per_execution)
        lost_in, step = self._lost
        lost = lost_in, step - step % repeated
        for epoch in range(epochs):
            history = model.fit(
                batches(lost, epoch), **options, initial_epoch=epoch, epochs=epoch + 1
            )
        return history
