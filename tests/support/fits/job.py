"""What differs between N ranks and one process, for a drawn program.

A program is a function `train(job)`. On ranks it gets a `Ranks`, which divides the
data and distributes the optimizer; in one process an `Alone`, which has the batches of
all ranks as one.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.fits.data import BATCH, Data, as_arguments, examples

__all__ = ["Job", "Result", "temporary_directory"]

VALIDATION_COUNT = 23


@dataclass
class Result:
    """What a program has trained.

    Attributes:
        names: Of the weights.
        start: The weights before the first step.
        weights: After the last one.
        logs: Of each epoch of each fit, by name.
        scales: By which the loss was multiplied after each batch, if it was.
    """

    names: list[str]
    start: list[np.ndarray]
    weights: list[np.ndarray]
    logs: list[dict[str, float]]
    scales: list[float]


class Job:
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
        callbacks = [*callbacks, _NotesScales(self._scales)]
        options |= {"callbacks": callbacks, "shuffle": False, "verbose": 0}
        history = self.trained(model, epochs, options)
        for epoch in range(len(history.epoch)):
            logs = {
                name: float(np.mean(v[epoch])) for name, v in history.history.items()
            }
            self._logs.append(logs)

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
        self._logs.append({name: float(np.mean(value)) for name, value in logs.items()})
        self._predictions += tf.nest.flatten(predictions)

    def inferred(self, model: keras.Model, data: Data, by: str) -> tuple[Any, Any]:
        """The metrics, and the predictions, of all examples."""
        raise NotImplementedError

    def values_of(self, model: keras.Model) -> list[np.ndarray]:
        """Of the weights."""
        return [np.array(weight) for weight in model.weights]

    def result(self, model: keras.Model) -> Result:
        """What was trained, and predicted."""
        predictions = self._predictions
        weights = self.values_of(model)
        start = self._start or [np.zeros_like(weight) for weight in weights]
        start = start + [np.zeros_like(array) for array in predictions]
        return Result(
            [weight.path for weight in model.weights]
            + [f"prediction {number}" for number in range(len(predictions))],
            start,
            weights + predictions,
            self._logs,
            self._scales,
        )


class _NotesScales(keras.callbacks.Callback):
    """After each batch: by what the loss was scaled, which tells of skipped steps."""

    def __init__(self, scales: list[float]) -> None:
        super().__init__()
        self._scales = scales

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        scale = getattr(self.model.optimizer, "dynamic_scale", None)
        self._scales += [] if scale is None else [float(scale)]


def _arguments(data: Data, given: Any, batch: int) -> dict[str, Any]:
    """Of `fit`, for what it gets of some data."""
    found: dict[str, Any] = {"class_weight": data.class_weights}
    if data.kind == "arrays":
        found |= as_arguments(given)
        found["batch_size"] = batch
    else:
        found["x"] = given
    if data.repeat:
        found["steps_per_epoch"] = data.batches - 1
    return found


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """For the files of one run."""
    return tempfile.TemporaryDirectory(prefix="ring-keras-fit-")
