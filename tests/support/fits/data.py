"""Examples to train on, and the forms in which `fit` gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = [
    "BATCH",
    "Batches",
    "Data",
    "as_arguments",
    "batches_of_all",
    "batches_of_rank",
    "dataset_of",
    "examples",
    "generated",
]

BATCH = 4


@dataclass
class Data:
    """Examples, and how they are given to `fit`."""

    x: Any
    y: Any
    weights: np.ndarray | None
    class_weights: dict[int, float] | None
    kind: str
    remainder: str
    repeat: bool
    batches: int
    lengths: str = "equal"

    @property
    def count(self) -> int:
        """How many examples."""
        return len(tf.nest.flatten(self.x)[0])

    @property
    def dtype(self) -> str:
        """Of the inputs."""
        return tf.nest.flatten(self.x)[0].dtype.name

    @property
    def first_rows(self) -> Any:
        """One example."""
        return tf.nest.map_structure(lambda array: array[:1], self.x)

    def parts(self) -> tuple[Any, ...]:
        """As a dataset or `fit` has them."""
        some = (self.x, self.y)
        return some if self.weights is None else (*some, self.weights)

    def batch_counts(self, size: int) -> list[int]:
        """How many batches each rank's generator has."""
        other = self.lengths == "other"
        return [self.batches + (rank % 2 if other else 0) for rank in range(size)]

    def rows(self, order: np.ndarray) -> Data:
        """These examples, in that order."""
        x, y, weights = tf.nest.map_structure(
            lambda array: None if array is None else array[order],
            (self.x, self.y, self.weights),
        )
        return replace(self, x=x, y=y, weights=weights)


def examples(
    task: str,
    inputs: str,
    count: int,
    *,
    seed: int,
    weights: str | None,
    two_inputs: bool,
    two_outputs: bool,
    **options: Any,
) -> Data:
    """Some of a task; the options are those of `Data`."""
    generator = np.random.default_rng(seed)
    floats = keras.config.floatx()

    def make_inputs() -> np.ndarray:
        if inputs == "words":
            return generator.integers(0, 20, (count, 6)).astype("int32")
        return generator.normal(size=(count, 6)).astype(floats)

    x: Any = make_inputs()
    total = x.astype("float64").sum(1)
    if two_inputs:
        x = {"a": x, "b": make_inputs()}
    scores = total - total.mean() + generator.normal(size=count)
    if task == "regression":
        y: Any = (scores[:, None] / 4).astype(floats)
    elif task == "binary":
        y = (scores[:, None] > 0).astype(floats)
    else:
        y = np.digitize(scores, (-1.0, 1.0)).astype("int32")
    if two_outputs:
        second = generator.normal(size=(count, 2)).astype(floats)
        y = {"first": y, "second": second}
    example_weights = None
    if weights in ("sample", "zeros"):
        example_weights = generator.uniform(0, 3, count).astype(floats)
    if weights == "zeros":
        example_weights[generator.uniform(size=count) < 0.4] = 0
    class_weights = {0: 0.5, 1: 2.0, 2: 1.0} if weights == "class" else None
    return Data(x, y, example_weights, class_weights, **options)


def batches_of_rank(data: Data, rank: int, size: int) -> list[tuple[Any, ...]]:
    """Those that its generator yields."""
    starts = [
        (batch * size + rank) * BATCH for batch in range(data.batch_counts(size)[rank])
    ]
    return [data.rows(np.arange(at, at + BATCH)).parts() for at in starts]


def batches_of_all(data: Data, size: int) -> list[tuple[Any, ...]]:
    """Of each step, those of all ranks that have one as one batch."""
    ranks = [batches_of_rank(data, rank, size) for rank in range(size)]
    found = []
    for step in range(max(map(len, ranks))):
        of_step = [batches[step] for batches in ranks if step < len(batches)]
        found.append(
            tf.nest.map_structure(lambda *parts: np.concatenate(parts), *of_step)
        )
    return found


def generated(batches: list[tuple[Any, ...]]) -> tf.data.Dataset:
    """A dataset that a generator makes, so that its length is unknown."""
    signature = tf.nest.map_structure(
        lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), batches[0]
    )
    return tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=signature
    )


class Batches(keras.utils.PyDataset):
    """Batches of arrays."""

    def __init__(self, parts: tuple[Any, ...], batch: int) -> None:
        super().__init__()
        self._parts = parts
        self._batch = batch

    @property
    def num_batches(self) -> int:
        count = len(tf.nest.flatten(self._parts)[0])
        return -(-count // self._batch)

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * self._batch, (index + 1) * self._batch)
        return tf.nest.map_structure(lambda array: array[rows], self._parts)


def dataset_of(data: Data) -> tf.data.Dataset:
    """Examples one by one."""
    dataset = tf.data.Dataset.from_tensor_slices(data.parts())
    if data.kind == "filter":  # Its length is unknown.
        return dataset.filter(lambda *_: True)
    return dataset


def as_arguments(parts: Sequence[Any]) -> dict[str, Any]:
    """Of `fit` and `evaluate`."""
    return dict(zip(("x", "y", "sample_weight"), parts, strict=False))
