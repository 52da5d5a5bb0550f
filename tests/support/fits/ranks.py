"""A drawn program on N ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from support.fits import models, references
from support.fits.data import (
    BATCH,
    Batches,
    Data,
    as_arguments,
    batches_of_rank,
    dataset_of,
    generated,
)
from support.fits.job import Job

__all__ = ["Ranks"]


class Ranks(Job):
    """N ranks.

    Args:
        directory: For this rank's files.
        first: Callbacks before all others.
        resume: What goes on within the data, if anything does; they are shuffled.
        process_set: Those that train. Defaults to all.
    """

    def __init__(
        self,
        directory: Path,
        *,
        first: Sequence[keras.callbacks.Callback] = (),
        resume: ring.data.Resume | None = None,
        process_set: ring.ProcessSet = ring.global_process_set,
    ) -> None:
        super().__init__(process_set.size(), directory)
        self._set = process_set
        # Each rank its own start; data that are shuffled have the same seeds.
        self.seed = 1 + (process_set.rank() if resume is None else 0)
        self.tape = models.distributed_tape
        self.initial_scale = 2.0**15 / self.size  # As docs/exactness.md says.
        self._first = [*first, *([] if resume is None else [resume])]
        self._resume = resume
        self._local: list[keras.layers.Layer] = []

    def optimizer(self, optimizer: Any, **options: Any) -> Any:
        """A distributed one."""
        if self._local:
            options["local_layers"] = self._local
        if "outer" in options:
            return ring.DiLoCo(optimizer, **options)
        return ring.DistributedOptimizer(optimizer, process_set=self._set, **options)

    def local_layer(self, units: int) -> keras.layers.Layer:
        """One whose weights each rank has by itself."""
        initializer = references.local_initializer(self._set.rank())
        layer = keras.layers.Dense(units, kernel_initializer=initializer)
        self._local.append(layer)
        return layer

    def values_of(self, model: keras.Model) -> list[np.ndarray]:
        """All ranks' values one upon the other, where each has its own."""
        local = {id(variable) for layer in self._local for variable in layer.variables}
        return [
            self._gathered(weight) if id(weight) in local else np.array(weight)
            for weight in model.weights
        ]

    def _gathered(self, weight: Any) -> np.ndarray:
        values = ring.allgather(
            weight.numpy()[None], name="fits/local", process_set=self._set
        )
        return values.numpy()

    def accumulation(self, steps: int) -> dict[str, int]:
        """Told by `backward_passes_per_step`."""
        return {}

    def prepare(self, model: keras.Model) -> None:
        """Batch normalization over all ranks."""
        ring.layers.synchronize_batch_normalization(model)

    def callbacks(
        self, callbacks: list[Any], *, order: int, ours: bool
    ) -> list[keras.callbacks.Callback]:
        """The callbacks, and ours, in some order."""
        found = list(callbacks)
        if ours:
            root = self._set.ranks[0]
            found.append(ring.callbacks.BroadcastGlobalVariables(root))
            found.append(ring.callbacks.MetricAverage())
        random.Random(order).shuffle(found)
        return [*self._first, *found]

    def warmup(self, rate: float, steps: int) -> keras.callbacks.Callback:
        """Ours."""
        return ring.callbacks.LearningRateWarmup(
            rate, warmup_steps=steps, momentum_correction=False
        )

    def rate_schedule(
        self, rate: float, multiplier: Callable[[float], float]
    ) -> keras.callbacks.Callback:
        """Ours."""
        return ring.callbacks.LearningRateSchedule(
            rate, multiplier, momentum_correction=False
        )

    def best_checkpoint(self, name: str) -> keras.callbacks.Callback:
        """Ours."""
        return ring.callbacks.BestModelCheckpoint("loss", filepath=self.path(name))

    def given(self, data: Data) -> tuple[Any, int]:
        """This rank's part, and the size of its batches."""
        return self._part(data), BATCH

    def inferred(self, model: keras.Model, data: Data, by: str) -> tuple[Any, Any]:
        """By Keras on this rank's part, or by our functions on all."""
        if by == "keras":
            part = self._shard(data.parts(), "keep")
            logs = model.evaluate(
                **as_arguments(part),
                batch_size=BATCH,
                verbose=0,
                return_dict=True,
                callbacks=[ring.callbacks.MetricAverage()],
            )
            return logs, model.predict(data.x, batch_size=BATCH, verbose=0)
        logs = ring.evaluate(
            model,
            **as_arguments(data.parts()),
            batch_size=BATCH,
            verbose=0,
            return_dict=True,
            process_set=self._set,
        )
        predictions = ring.predict(
            model, data.x, batch_size=BATCH, verbose=0, process_set=self._set
        )
        return logs, predictions

    def validation_data(self, others: Data, kind: str) -> dict[str, Any]:
        """This rank's part of them."""
        if kind == "arrays":
            part = self._shard(others.parts(), "keep")
            return {"validation_data": part, "validation_batch_size": BATCH}
        dataset = tf.data.Dataset.from_tensor_slices(others.parts())
        part = self._shard(dataset, "keep")
        return {"validation_data": part.batch(BATCH)}

    def _shard(self, data: Any, remainder: Any, **options: Any) -> Any:
        return ring.data.shard(
            data, remainder=remainder, process_set=self._set, **options
        )

    def _part(self, data: Data) -> Any:
        """This rank's, in the form in which `fit` takes it."""
        remainder = "keep" if data.remainder == "join" else data.remainder
        if data.kind == "arrays":
            return self._shard(data.parts(), remainder)
        if data.kind == "PyDataset":
            return self._shard(Batches(data.parts(), BATCH), remainder)
        if data.kind == "generator":
            batches = batches_of_rank(data, self._set.rank(), self.size)
            if data.remainder != "join":
                return (parts for parts in batches)
            dataset = generated(batches)
        else:
            seed = None if self._resume is None else 1
            mine = self._shard(
                dataset_of(data), remainder, seed=seed, resume=self._resume
            )
            dataset = mine.batch(BATCH)
        if data.repeat:
            return dataset.repeat()
        if data.remainder == "join":
            return ring.data.join(dataset, process_set=self._set)
        return dataset
