"""Fits of small models on Keras's back ends torch and JAX, on one rank or several."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from support.back_ends import BACK_END, HAS_EXECUTIONS, on_back_end

__all__ = [
    "FEATURES",
    "NORMALIZED",
    "custom_class",
    "data_of",
    "network",
    "normalization",
    "trained",
]

# How far a fit with batch normalization may be from one process: that is of 32 bits.
NORMALIZED = {"rtol": 1e-5, "atol": 1e-5}

ROWS = 40
BATCH = 8  # Of all ranks.


def data_of(rows: int = ROWS) -> tuple[Any, Any, Any]:
    """Inputs, targets of one number, and sample weights."""
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(rows, 5))
    y = np.square(x).sum(1, keepdims=True)
    return x, y, numbers.uniform(0.1, 2.0, size=rows)


def _functions() -> tuple[Any, Any, Any, Any]:
    """Products, and three activations, of the framework."""
    if BACK_END == "torch":
        import torch

        return torch.matmul, torch.tanh, torch.sigmoid, torch.clone
    import jax

    return jax.numpy.matmul, jax.numpy.tanh, jax.nn.sigmoid, lambda x: x


def network(
    keras: Any,
    *,
    heads: int = 1,
    classifies: bool = False,
    normalized: Any = None,
    masked: bool = False,
) -> Any:
    """A small one; without its first values.

    Args:
        keras: The module.
        heads: How many outputs it has.
        classifies: Whether these are probabilities.
        normalized: Makes a batch normalization, if it is to have some.
        masked: Whether rows of a first input below 0.5 count for nothing there.
    """
    matmul, tanh, sigmoid, linear = _functions()

    class Dense(keras.layers.Layer):
        """In 64 bits, which Keras's own is not on torch."""

        def __init__(self, units: int, activation: Any) -> None:
            super().__init__()
            self.units = units
            self.activation = activation
            self.kernel_regularizer: Any = None

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight((shape[-1], self.units), name="kernel")
            self.bias = self.add_weight((self.units,), name="bias")

        def call(self, inputs: Any) -> Any:
            if self.kernel_regularizer is not None:
                self.add_loss(self.kernel_regularizer(self.kernel))
            return self.activation(matmul(inputs, self.kernel.value) + self.bias.value)

    inputs = keras.Input((5,))
    hidden = Dense(8, tanh)(inputs)
    if normalized is not None:
        mask = (inputs[:, 0] < 0.5) if masked else None
        hidden = normalized(momentum=0.9)(hidden, mask=mask)
        hidden = normalized(momentum=0.9)(Dense(7, linear)(hidden))
    hidden = Dense(6, tanh)(hidden)
    last = sigmoid if classifies else linear
    outputs = [Dense(1, last)(hidden) for _ in range(heads)]
    return keras.Model(inputs, outputs if heads > 1 else outputs[0])


def normalization(keras: Any, jobs_rank: int | None) -> Any:
    """What makes a batch normalization, for a rank of a job or for one process."""
    if jobs_rank is None:
        return keras.layers.BatchNormalization
    import ring_keras as ring

    return ring.layers.SyncBatchNormalization


# Of each: the optimizer, and what is special about the training.
FEATURES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "nesterov": True},
    "adam": {"optimizer": "Adam", "learning_rate": 0.01},
    "adamw": {"optimizer": "AdamW", "weight_decay": 0.1},
    "global_clipnorm": {"global_clipnorm": 0.3},
    "clipvalue": {"optimizer": "Adam", "clipvalue": 0.05},
    "ema": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3},
    "accumulation": {"gradient_accumulation_steps": 2},
    "schedule": {"schedule": True},
    "uneven_last_batch": {"rows": 36, "remainder": "keep"},
    "uneven_ranks": {"rows": 37, "remainder": "keep"},
    "accumulation_of_uneven": {
        "gradient_accumulation_steps": 2,
        "rows": 37,
        "remainder": "keep",
    },
    "sample_weight": {"sample_weight": True, "metrics": ["mae"]},
    "weighted_mean": {"sample_weight": True, "reduction": "mean_with_sample_weight"},
    "weightless_batch": {
        "sample_weight": True,
        "reduction": "mean_with_sample_weight",
        "weightless": True,
        "regularizer": True,
    },
    "class_weight": {"class_weight": {0: 0.5, 1: 3.0}, "classifies": True},
    "summed_loss": {"reduction": "sum", "learning_rate": 0.002},
    "custom_step": {"custom": True},
    "two_heads": {"heads": 2},
    "regularizer": {"regularizer": True},
    "metrics": {
        "classifies": True,
        "metrics": ["AUC", "R2Score", "F1Score", "accuracy"],
    },
    "validation": {"validates": True, "metrics": ["mae"]},
    "eager": {"run_eagerly": True, "optimizer": "Adam"},
    "accumulation_eager": {"run_eagerly": True, "gradient_accumulation_steps": 2},
    "loss_scaled": {"scaled": True},
    "overflows_on_one_rank": {"scaled": True, "huge": 13},
    "small_buckets": {"optimizer": "Adam", "bucket_size_bytes": 64},
    "normalized": {"normalized": True},
    "normalized_uneven": {"normalized": True, "rows": 37, "remainder": "keep"},
    "normalized_masked": {"normalized": True, "masked": True},
    "normalized_eager": {"normalized": True, "run_eagerly": True},
    "normalized_accumulation": {
        "normalized": True,
        "gradient_accumulation_steps": 2,
        "rows": 37,
        "remainder": "keep",
    },
    "normalized_weighted": {
        "normalized": True,
        "sample_weight": True,
        "reduction": "mean_with_sample_weight",
        "weightless": True,
    },
    "normalized_summed": {
        "normalized": True,
        "reduction": "sum",
        "learning_rate": 0.002,
        "rows": 37,
        "remainder": "keep",
    },
    "normalized_custom": {"normalized": True, "custom": True},
}


FEATURES |= on_back_end(
    torch={
        "compiled": {"jit_compile": True, "optimizer": "Adam"},
        "normalized_compiled": {"jit_compile": True, "normalized": True},
        "loader": {"loader": True},
    },
    jax={
        "weighted_accumulation": {
            "sample_weight": True,
            "reduction": "mean_with_sample_weight",
            "gradient_accumulation_steps": 2,
        },
    },
)

if HAS_EXECUTIONS:
    FEATURES |= {
        "steps_per_execution": {"steps_per_execution": 2},
        "normalized_in_executions": {"steps_per_execution": 2, "normalized": True},
        "accumulation_in_executions": {
            "steps_per_execution": 3,
            "gradient_accumulation_steps": 2,
            "rows": 37,
            "remainder": "keep",
        },
    }


def _custom_of_jax(keras: Any) -> type[Any]:
    import jax

    class Custom(keras.Model):
        """As that of torch; its state goes in and comes out."""

        def train_step(self, state, data):
            trained, others, of_optimizer, of_metrics = state
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)

            def loss_of(values):
                outputs, new = self.stateless_call(values, others, x, training=True)
                return keras.ops.mean(keras.ops.square(outputs - y)), new

            for _ in range(2):
                (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(
                    trained
                )
                trained, of_optimizer = self.optimizer.stateless_apply(
                    of_optimizer, gradients, trained
                )
            mapping = list(zip(self.metrics_variables, of_metrics, strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                self._loss_tracker.update_state(loss, sample_weight=len(x))
                logs = {"loss": self._loss_tracker.result()}
            of_metrics = [scope.get_current_value(v) for v in self.metrics_variables]
            return logs, (trained, others, of_optimizer, of_metrics)

    return Custom


def _custom_of_torch(keras: Any) -> type[Any]:
    import torch

    class Custom(keras.Model):
        """Two updates by one optimizer in a step of its own."""

        def train_step(self, data):
            x, y = data
            for _ in range(2):
                self.zero_grad()
                loss = keras.ops.mean(keras.ops.square(self(x, training=True) - y))
                loss.backward()
                weights = self.trainable_weights
                with torch.no_grad():
                    self.optimizer.apply([w.value.grad for w in weights], weights)
            self._loss_tracker.update_state(loss, sample_weight=len(x))
            return {"loss": self._loss_tracker.result()}

    return Custom


def custom_class(keras: Any) -> type[Any]:
    """That of a model with a `train_step` of its own."""
    classes = on_back_end(torch=_custom_of_torch, jax=_custom_of_jax)
    made: type[Any] = classes(keras)
    return made


def trained(
    name: str, *, jobs_rank: int | None = None
) -> tuple[dict[str, list[float]], list[Any]]:
    """Trains with a feature; what `fit` reports, and the weights.

    Args:
        name: Of `FEATURES`.
        jobs_rank: This process is one of a job, with that rank. None: it is alone.
    """
    import keras

    feature = dict(FEATURES[name])
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    x, y, weights = data_of(feature.pop("rows", ROWS))
    if feature.pop("weightless", False):
        weights[BATCH : 2 * BATCH] = 0.0
    classifies = feature.pop("classifies", False)
    if classifies:
        y = (y > np.median(y)).astype("float64")
    heads = feature.pop("heads", 1)
    normalized = None
    if feature.pop("normalized", False):
        normalized = normalization(keras, jobs_rank)
    model = network(
        keras,
        heads=heads,
        classifies=classifies,
        normalized=normalized,
        masked=feature.pop("masked", False),
    )
    if jobs_rank is not None:
        model.set_weights([0 * weight for weight in model.get_weights()])
    if jobs_rank in (None, 0):
        numbers = np.random.default_rng(11)
        model.set_weights([numbers.normal(size=w.shape) for w in model.get_weights()])
    if feature.pop("regularizer", False):
        for layer in model.layers[1:]:
            layer.kernel_regularizer = keras.regularizers.L2(0.05)
    if feature.pop("custom", False):
        model = custom_class(keras)(model.inputs, model.outputs)
    rate = feature.pop("learning_rate", 0.02)
    if feature.pop("schedule", False):
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
    options = {
        key: feature.pop(key) for key in ("bucket_size_bytes",) if key in feature
    }
    remainder = feature.pop("remainder", "drop")
    reduction = feature.pop("reduction", "sum_over_batch_size")
    metrics = feature.pop("metrics", [])
    if "accuracy" in metrics:
        metrics = [
            keras.metrics.AUC(name="auc", num_thresholds=20),
            keras.metrics.R2Score(name="r2"),
            keras.metrics.F1Score(name="f1", threshold=0.5),
            "accuracy",
            keras.metrics.TruePositives(name="tp"),
            keras.metrics.FalseNegatives(name="fn"),
        ]
    jit = feature.pop("jit_compile", on_back_end(torch=False, jax="auto"))
    eager = feature.pop("run_eagerly", False)
    steps_per_execution = feature.pop("steps_per_execution", 1)
    uses_weights = feature.pop("sample_weight", False)
    class_weight = feature.pop("class_weight", None)
    validates = feature.pop("validates", False)
    uses_loader = feature.pop("loader", False)
    is_scaled = feature.pop("scaled", False)
    if (row := feature.pop("huge", None)) is not None:
        y[row] = 1e306  # Its gradient, scaled, is infinite.
    optimizer = getattr(keras.optimizers, feature.pop("optimizer", "SGD"))(
        rate, **feature
    )
    size = 1
    parts = (x, y, weights)
    if jobs_rank is not None:
        import ring_keras as ring

        size = ring.size()
        optimizer = ring.DistributedOptimizer(optimizer, **options)
        parts = ring.data.shard(parts, remainder=remainder)
    compiled_with = optimizer
    if is_scaled:
        compiled_with = keras.optimizers.LossScaleOptimizer(optimizer)
    loss = (
        keras.losses.BinaryCrossentropy(reduction=reduction)
        if classifies
        else keras.losses.MeanSquaredError(reduction=reduction)
    )
    model.compile(
        compiled_with,
        loss=[loss] * heads if heads > 1 else loss,
        metrics=None if uses_weights else metrics,
        weighted_metrics=metrics if uses_weights else None,
        jit_compile=jit,
        run_eagerly=eager,
        steps_per_execution=steps_per_execution,
    )
    x, y, weights = parts
    given = {"x": x, "y": [y] * heads if heads > 1 else y, "batch_size": BATCH // size}
    if uses_weights:
        given["sample_weight"] = weights
    if uses_loader:
        import torch

        pairs = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        given = {"x": torch.utils.data.DataLoader(pairs, batch_size=BATCH // size)}
    if validates:
        given["validation_data"] = (x[:9], y[:9])
        if size > 1:
            halves = ring.data.shard(data_of()[:2])
            given["validation_data"] = halves
        else:
            given["validation_data"] = data_of()[:2]
    history = model.fit(
        **given, class_weight=class_weight, epochs=3, shuffle=False, verbose=0
    ).history
    assert "tensorflow" not in sys.modules
    from ring_keras.backends.common.hook import common_state

    variables = [*model.weights, *common_state([optimizer])]
    return history, [np.asarray(variable.numpy()) for variable in variables]
