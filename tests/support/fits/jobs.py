"""What differs between N ranks and one process, for a drawn program.

A program is a function `train(job)`. On ranks it gets a `Ranks`, which divides the
data and distributes the optimizer; in one process an `Alone`, which has the batches of
all ranks as one.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    batches_of_all,
    batches_of_rank,
    examples,
    generated,
)

__all__ = ["Alone", "AloneWithLoss", "Ranks", "Result", "temporary_directory"]

VALIDATION_COUNT = 23


@dataclass
class Result:
    """What a program has trained.

    Attributes:
        names: Of the weights.
        start: The weights before the first step.
        weights: After the last one.
        logs: Of each epoch of each fit, by name.
        scales: By which the loss was multiplied at the end of each fit, if it was.
    """

    names: list[str]
    start: list[np.ndarray]
    weights: list[np.ndarray]
    logs: list[dict[str, float]]
    scales: list[float]


class _Job:
    """What both have in common."""

    size: int
    seed: int
    head_dtype: str

    def __init__(self, size: int, directory: Path) -> None:
        self.size = size
        self.head_dtype = keras.config.floatx()
        self._directory = directory
        self._start: list[np.ndarray] = []
        self._logs: list[dict[str, float]] = []
        self._scales: list[float] = []
        self._predictions: list[np.ndarray] = []

    def data(
        self,
        task: str,
        inputs: str,
        *,
        seed: int,
        batches: int,
        kind: str,
        remainder: str = "drop",
        uneven: int = 0,
        lengths: str = "equal",
        weights: str | None = None,
        repeat: bool = False,
        two_inputs: bool = False,
        two_outputs: bool = False,
    ) -> Data:
        """Some examples of a task, of which each rank gets `batches` batches.

        Args:
            task: "regression", "binary" or "classes".
            inputs: "words", which are integers, or "numbers".
            seed: Of the examples.
            batches: How many steps one epoch has.
            kind: How `fit` gets them.
            remainder: As of `ring.data.shard`, or "join".
            uneven: How many examples the last step lacks.
            lengths: "other" if every second rank has a batch more.
            weights: Which kind of weights examples have.
            repeat: Whether epochs end within the data.
            two_inputs: Whether inputs are a dict of two.
            two_outputs: Whether labels are a dict of two.
        """
        count = (batches + (lengths == "other")) * BATCH * self.size - uneven
        return examples(
            task,
            inputs,
            count,
            seed=seed,
            weights=weights,
            two_inputs=two_inputs,
            two_outputs=two_outputs,
            kind=kind,
            remainder=remainder,
            repeat=repeat,
            batches=batches,
            lengths=lengths,
        )

    def path(self, name: str) -> str:
        """A file of this run."""
        return str(self._directory / name)

    def adapted(self, layer: keras.layers.Layer, data: Data) -> keras.layers.Layer:
        """A preprocessing layer that knows all of the data."""
        layer.adapt(tf.nest.flatten(data.x)[0])
        return layer

    def build(self, model: keras.Model, data: Data) -> None:
        """Before `fit`: notes the weights that training begins with."""

    def saved_and_loaded(self, model: keras.Model) -> keras.Model:
        """As a file holds it; each process has its own file."""
        path = self.path("model.keras")
        model.save(path)
        return keras.models.load_model(path)

    def given(self, data: Data) -> tuple[Any, int]:
        """What `fit` gets, and the size of its batches."""
        raise NotImplementedError

    def validation_data(self, others: Data, kind: str) -> dict[str, Any]:
        """What `fit` gets of examples to evaluate on."""
        raise NotImplementedError

    def fit(
        self,
        model: keras.Model,
        data: Data,
        *,
        epochs: int,
        callbacks: list[keras.callbacks.Callback],
        validation: str | None = None,
    ) -> None:
        """`model.fit`; keeps the logs."""
        given, batch = self.given(data)
        options = _arguments(data, given, batch)
        if validation is not None:
            count = 1 if validation == "one row" else min(data.count, VALIDATION_COUNT)
            others = data.rows(np.arange(data.count)[-count:])
            options |= self.validation_data(others, validation)
        options |= {"callbacks": callbacks, "shuffle": False, "verbose": 0}
        history = self.trained(model, epochs, options)
        for epoch in range(len(history.epoch)):
            logs = {name: float(v[epoch]) for name, v in history.history.items()}
            self._logs.append(logs)
        scale = getattr(model.optimizer, "dynamic_scale", None)
        self._scales += [] if scale is None else [float(scale)]

    def trained(self, model: keras.Model, epochs: int, options: Any) -> Any:
        """What `fit` returns."""
        return model.fit(**options, epochs=epochs)

    def infer(self, model: keras.Model, data: Data, *, by: str) -> None:
        """Evaluates and predicts; keeps what comes of it.

        Args:
            model: A trained one.
            data: What it was trained on.
            by: "keras" or "ring": whose functions do that on ranks.
        """
        logs, predictions = self.inferred(model, data, by)
        self._logs.append({name: float(value) for name, value in logs.items()})
        self._predictions += tf.nest.flatten(predictions)

    def inferred(self, model: keras.Model, data: Data, by: str) -> tuple[Any, Any]:
        """The metrics, and the predictions, of all examples."""
        raise NotImplementedError

    def result(self, model: keras.Model) -> Result:
        """What was trained, and predicted."""
        predictions = self._predictions
        start = self._start + [np.zeros_like(array) for array in predictions]
        return Result(
            [weight.path for weight in model.weights]
            + [f"prediction {number}" for number in range(len(predictions))],
            start,
            [np.array(weight) for weight in model.weights] + predictions,
            self._logs,
            self._scales,
        )


class Ranks(_Job):
    """N ranks.

    Args:
        directory: For this rank's files.
        first: Callbacks before all others.
        resume: What goes on within the data, if anything does; they are shuffled.
    """

    def __init__(
        self,
        directory: Path,
        *,
        first: Sequence[keras.callbacks.Callback] = (),
        resume: ring.data.Resume | None = None,
    ) -> None:
        super().__init__(ring.size(), directory)
        # Each rank its own start; data that are shuffled have the same seeds.
        self.seed = 1 + (ring.rank() if resume is None else 0)
        self.tape = models.distributed_tape
        self._first = [*first, *([] if resume is None else [resume])]
        self._resume = resume

    def optimizer(self, optimizer: Any, **options: Any) -> Any:
        """A distributed one."""
        return ring.DistributedOptimizer(optimizer, **options)

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
            found.append(ring.callbacks.BroadcastGlobalVariables())
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
        return _part(data, self._resume), BATCH

    def inferred(self, model: keras.Model, data: Data, by: str) -> tuple[Any, Any]:
        """By Keras on this rank's part, or by our functions on all."""
        if by == "keras":
            part = ring.data.shard(data.parts(), remainder="keep")
            logs = model.evaluate(
                **_arrays(part),
                batch_size=BATCH,
                verbose=0,
                return_dict=True,
                callbacks=[ring.callbacks.MetricAverage()],
            )
            return logs, model.predict(data.x, batch_size=BATCH, verbose=0)
        logs = ring.evaluate(
            model,
            **_arrays(data.parts()),
            batch_size=BATCH,
            verbose=0,
            return_dict=True,
        )
        return logs, ring.predict(model, data.x, batch_size=BATCH, verbose=0)

    def validation_data(self, others: Data, kind: str) -> dict[str, Any]:
        """This rank's part of them."""
        if kind == "arrays":
            part = ring.data.shard(others.parts(), remainder="keep")
            return {"validation_data": part, "validation_batch_size": BATCH}
        dataset = tf.data.Dataset.from_tensor_slices(others.parts())
        part = ring.data.shard(dataset, remainder="keep")
        return {"validation_data": part.batch(BATCH)}


def _part(data: Data, resume: ring.data.Resume | None) -> Any:
    """This rank's, in the form in which `fit` takes it."""
    remainder: Any = "keep" if data.remainder == "join" else data.remainder
    if data.kind == "arrays":
        return ring.data.shard(data.parts(), remainder=remainder)
    if data.kind == "PyDataset":
        return ring.data.shard(Batches(data.parts(), BATCH), remainder=remainder)
    if data.kind == "generator":
        batches = batches_of_rank(data, ring.rank(), ring.size())
        if data.remainder != "join":
            return (parts for parts in batches)
        dataset = generated(batches)
    else:
        seed = None if resume is None else 1
        mine = ring.data.shard(
            _dataset(data), remainder=remainder, seed=seed, resume=resume
        )
        dataset = mine.batch(BATCH)
    if data.repeat:
        return dataset.repeat()
    return ring.data.join(dataset) if data.remainder == "join" else dataset


def _dataset(data: Data) -> tf.data.Dataset:
    """Examples one by one."""
    dataset = tf.data.Dataset.from_tensor_slices(data.parts())
    if data.kind == "filter":  # Its length is unknown.
        return dataset.filter(lambda *_: True)
    return dataset


def _arrays(parts: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(("x", "y", "sample_weight"), parts, strict=False))


def _arguments(data: Data, given: Any, batch: int) -> dict[str, Any]:
    """Of `fit`, for what it gets of some data."""
    found: dict[str, Any] = {"class_weight": data.class_weights}
    if data.kind == "arrays":
        found |= _arrays(given)
        found["batch_size"] = batch
    else:
        found["x"] = given
    if data.repeat:
        found["steps_per_epoch"] = data.batches - 1
    return found


class Alone(_Job):
    """One process.

    Args:
        size: Of the job that it stands for.
        directory: For its files.
        mixed: Whether the examples of each batch come in another order, which changes
            nothing but the order of sums.
    """

    seed = 1

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
            **_arrays(data.parts()), batch_size=batch, verbose=0, return_dict=True
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
        dataset = _dataset(ours).batch(batch)
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
        steps = functools.partial(
            references.with_loss, data, self.size, self._lost, is_mixed=self._mixed
        )
        return steps, BATCH * self.size

    def trained(self, model: keras.Model, epochs: int, options: Any) -> Any:
        """Epoch by epoch."""
        steps = options.pop("x")
        for epoch in range(epochs):
            history = model.fit(
                steps(epoch), **options, initial_epoch=epoch, epochs=epoch + 1
            )
        return history


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """For the files of one run."""
    return tempfile.TemporaryDirectory(prefix="ring-keras-fit-")
