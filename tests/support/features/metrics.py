"""Every metric that Keras ships, in `fit` and in its validation, uneven data."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from support import training
from support.features import Difference, Feature
from support.features.compare import standard_callbacks

m = keras.metrics
COUNT = 63  # So that a rank has as many batches with one less.
VALIDATION_COUNT = 29
# Results of thousands have that many digits fewer behind the point.
LIMIT = 5e-7


def _binary(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, 2, size=(count, 1)).astype(np.float32)


def _one_hot(generator: np.random.Generator, count: int) -> np.ndarray:
    return np.eye(3, dtype=np.float32)[generator.integers(0, 3, size=count)]


def _sparse(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, 3, size=(count, 1))


def _positive(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.uniform(0.5, 2.0, size=(count, 3)).astype(np.float32)


@dataclass(frozen=True)
class Domain:
    """A kind of labels, a network for them, and the metrics that take them."""

    labels: Callable[[np.random.Generator, int], np.ndarray]
    activation: str
    loss: str
    metrics: dict[str, Callable[[], m.Metric]]


DOMAINS: dict[str, Domain] = {
    "binary": Domain(
        _binary,
        "sigmoid",
        "binary_crossentropy",
        {
            "BinaryAccuracy": m.BinaryAccuracy,
            "BinaryCrossentropy": m.BinaryCrossentropy,
            "AUC": m.AUC,
            "AUC, precision-recall": lambda: m.AUC(curve="PR"),
            "Precision": m.Precision,
            "Recall": m.Recall,
            "PrecisionAtRecall": lambda: m.PrecisionAtRecall(0.5),
            "RecallAtPrecision": lambda: m.RecallAtPrecision(0.4),
            "SensitivityAtSpecificity": lambda: m.SensitivityAtSpecificity(0.5),
            "SpecificityAtSensitivity": lambda: m.SpecificityAtSensitivity(0.5),
            "TruePositives": m.TruePositives,
            "TrueNegatives": m.TrueNegatives,
            "FalsePositives": m.FalsePositives,
            "FalseNegatives": m.FalseNegatives,
            "BinaryIoU": m.BinaryIoU,
            "Hinge": m.Hinge,
            "SquaredHinge": m.SquaredHinge,
            "Accuracy": m.Accuracy,
        },
    ),
    "one-hot": Domain(
        _one_hot,
        "softmax",
        "categorical_crossentropy",
        {
            "CategoricalAccuracy": m.CategoricalAccuracy,
            "TopKCategoricalAccuracy": lambda: m.TopKCategoricalAccuracy(k=2),
            "CategoricalCrossentropy": m.CategoricalCrossentropy,
            "CategoricalHinge": m.CategoricalHinge,
            "F1Score": m.F1Score,
            "F1Score, macro": lambda: m.F1Score(average="macro"),
            "FBetaScore, weighted": lambda: m.FBetaScore(average="weighted", beta=2.0),
            "KLDivergence": m.KLDivergence,
            "OneHotIoU": lambda: m.OneHotIoU(num_classes=3, target_class_ids=[0, 2]),
            "OneHotMeanIoU": lambda: m.OneHotMeanIoU(num_classes=3),
            "AUC, multi_label": lambda: m.AUC(multi_label=True, num_labels=3),
            "CosineSimilarity": m.CosineSimilarity,
            "PearsonCorrelation, axis=-1": m.PearsonCorrelation,
            "ConcordanceCorrelation, axis=-1": m.ConcordanceCorrelation,
        },
    ),
    "sparse": Domain(
        _sparse,
        "softmax",
        "sparse_categorical_crossentropy",
        {
            "SparseCategoricalAccuracy": m.SparseCategoricalAccuracy,
            "SparseTopKCategoricalAccuracy": lambda: m.SparseTopKCategoricalAccuracy(
                k=2
            ),
            "SparseCategoricalCrossentropy": m.SparseCategoricalCrossentropy,
            "IoU": lambda: m.IoU(
                num_classes=3, target_class_ids=[0, 1], sparse_y_pred=False
            ),
            "MeanIoU": lambda: m.MeanIoU(num_classes=3, sparse_y_pred=False),
        },
    ),
    "regression": Domain(
        _positive,
        "softplus",
        "mean_squared_error",
        {
            "MeanSquaredError": m.MeanSquaredError,
            "RootMeanSquaredError": m.RootMeanSquaredError,
            "MeanAbsoluteError": m.MeanAbsoluteError,
            "MeanAbsolutePercentageError": m.MeanAbsolutePercentageError,
            "MeanSquaredLogarithmicError": m.MeanSquaredLogarithmicError,
            "LogCoshError": m.LogCoshError,
            "Poisson": m.Poisson,
            "R2Score": m.R2Score,
            "R2Score, variance_weighted_average": lambda: m.R2Score(
                class_aggregation="variance_weighted_average"
            ),
            "MeanMetricWrapper": lambda: m.MeanMetricWrapper(
                lambda y, y_pred: tf.reduce_max(tf.abs(y - y_pred), -1)
            ),
        },
    ),
}


class Watches(keras.layers.Layer):
    """Keeps metrics of what goes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = m.Mean(name="layer_mean")
        self.sum = m.Sum(name="layer_sum")

    def call(self, inputs):
        self.mean.update_state(inputs)
        self.sum.update_state(inputs)
        return inputs


LAYER_METRICS = "Mean and Sum, updated by a layer"
WEIGHTED = "weighted_metrics, with sample weights"


@functools.cache
def differences(domain: str, weighted: bool = False) -> dict[str, float]:
    """The largest difference of each metric; on rank 0, else nothing.

    Once per process and domain: the metrics of a domain share one `fit`. The
    model does not learn, so that what differs is the metrics' own.
    """
    size, rank = ring.size(), ring.rank()
    data, validation = (
        _dataset(DOMAINS[domain], count, weighted)
        for count in (COUNT * size - 1, VALIDATION_COUNT * size + 1)
    )
    model = _model(DOMAINS[domain], 1 + rank, weighted, ring.DistributedOptimizer)
    logs = training.fit(
        model,
        ring.data.shard(data, remainder="keep"),
        training.BATCH,
        validation_data=ring.data.shard(validation, remainder="keep").batch(3),
        callbacks=standard_callbacks(),
    )
    if rank != 0:
        return {}
    alone = _model(DOMAINS[domain], 1, weighted, lambda optimizer: optimizer)
    expected = training.fit(
        alone,
        data,
        training.BATCH * size,
        validation_data=validation.batch(3 * size),
    )
    assert set(logs) == set(expected), (sorted(logs), sorted(expected))
    found: dict[str, float] = {}
    for key, (value,) in expected.items():
        difference = np.abs(np.subtract(logs[key][0], value))
        # Relative where values are large: counts, and percentages.
        difference = np.max(difference / np.maximum(1.0, np.abs(value)))
        name = key.removeprefix("val_")
        found[name] = max(found.get(name, 0.0), float(difference))
    return found


def _dataset(domain: Domain, count: int, weighted: bool) -> tf.data.Dataset:
    generator = np.random.default_rng(count)
    parts = [
        generator.normal(size=(count, 6)).astype(np.float32),
        domain.labels(generator, count),
    ]
    if weighted:
        parts.append(generator.uniform(0, 3, count).astype(np.float32))
    return tf.data.Dataset.from_tensor_slices(tuple(parts))


def _model(
    domain: Domain, seed: int, weighted: bool, distribute: Callable[..., object]
) -> keras.Model:
    keras.utils.set_random_seed(seed)
    outputs = domain.labels(np.random.default_rng(0), 1).shape[1]
    model = keras.Sequential(
        [
            keras.layers.Dense(8, activation="tanh"),
            Watches(),
            keras.layers.Dense(
                3 if domain.labels is _sparse else outputs, activation=domain.activation
            ),
        ]
    )
    metrics = []
    for name, make in domain.metrics.items():
        metrics.append(make())
        metrics[-1].name = _key(name)
    where = "weighted_metrics" if weighted else "metrics"
    optimizer = distribute(keras.optimizers.SGD(0.0))
    model.compile(optimizer, domain.loss, **{where: metrics})
    return model


def _key(name: str) -> str:
    """A name that TensorFlow takes."""
    return re.sub(r"\W+", "_", name)


def _of_metric(domain: str, name: str) -> Difference:
    found = differences(domain)
    return Difference(metrics=found[_key(name)]) if found else Difference()


def _of_layer() -> Difference:
    found = differences("regression")
    if not found:
        return Difference()
    return Difference(metrics=max(found["layer_mean"], found["layer_sum"]))


def _weighted() -> Difference:
    found = [differences(domain, weighted=True) for domain in ("binary", "one-hot")]
    values = [value for one in found for value in one.values()]
    return Difference(metrics=max(values)) if values else Difference()


FEATURES = [
    *(
        Feature(name, functools.partial(_of_metric, domain, name), metric_limit=LIMIT)
        for domain, parts in DOMAINS.items()
        for name in parts.metrics
    ),
    Feature(LAYER_METRICS, _of_layer, metric_limit=LIMIT),
    Feature(WEIGHTED, _weighted, metric_limit=LIMIT),
]
