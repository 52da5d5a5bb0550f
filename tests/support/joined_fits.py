"""Fits on torch and JAX of ranks with different numbers of batches, and of one process.

What a rank computes on a batch that only stands for one is made NaN: so no result of a
job shows anything of it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from support.back_ends import on_back_end
from support.feature_fits import custom_class, data_of, network, normalization

__all__ = ["FITS", "ROWS_OF_RANKS", "poisoned", "trained"]

BATCH = 4  # Of each rank.
ROWS_OF_RANKS = {2: [7, 18], 4: [7, 3, 18, 5]}
"""By the number of ranks: 2 and 5 batches; 2, 1, 5 and 2."""

# Of each: the optimizer, and what is special about the training.
FITS: dict[str, dict[str, Any]] = {
    "arrays": {"data": "arrays", "metrics": True},
    "dataset": {"optimizer": "Adam", "learning_rate": 0.01},
    "generator": {"data": "generator", "epochs": 1},
    "momentum_and_clipping": {"momentum": 0.9, "global_clipnorm": 0.3},
    "ema": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3},
    "accumulation": {"gradient_accumulation_steps": 2},
    "sample_weight": {"sample_weight": True, "metrics": True},
    "weighted_mean": {"sample_weight": True, "reduction": "mean_with_sample_weight"},
    "class_weight": {"class_weight": {0: 0.5, 1: 3.0}, "classifies": True},
    "summed_loss": {"reduction": "sum", "learning_rate": 0.002},
    "custom_step": {"custom": True},
    "two_optimizers": {"several": True},
    "regularizer": {"regularizer": True},
    "loss_scaled": {"scaled": True},
    "eager": {"run_eagerly": True, "optimizer": "Adam"},
    "validation": {"validates": True, "metrics": True},
    "normalized": {"normalized": True},
    "normalized_accumulation": {"normalized": True, "gradient_accumulation_steps": 2},
    "normalized_summed": {
        "normalized": True,
        "reduction": "sum",
        "learning_rate": 0.002,
    },
}

FITS |= on_back_end(
    torch={
        "compiled": {"jit_compile": True, "optimizer": "Adam"},
        "loader": {"data": "loader"},
    },
    jax={
        "steps_per_execution": {"steps_per_execution": 2},
        "executions_of_three": {
            "steps_per_execution": 3,
            "gradient_accumulation_steps": 2,
            "validates": True,
        },
    },
)


def poisoned(loss: type[Any]) -> type[Any]:
    """The loss, that is no number where this rank has no batch."""

    class Poisoned(loss):
        def call(self, *args: Any) -> Any:
            from ring_keras.backends.common.step import current_step

            result = super().call(*args)
            return result if current_step().counts else result * float("nan")

    return Poisoned


def batches_of(part: list[Any]) -> list[tuple[Any, ...]]:
    """Arrays, cut into batches."""
    count = len(part[0])
    return [
        tuple(array[start : start + BATCH] for array in part)
        for start in range(0, count, BATCH)
    ]


def _parts(arrays: list[Any], size: int) -> list[list[Any]]:
    ends = np.cumsum(ROWS_OF_RANKS[size])
    return [
        [array[end - rows : end] for array in arrays]
        for rows, end in zip(ROWS_OF_RANKS[size], ends, strict=True)
    ]


def batches_of_all(arrays: list[Any], size: int) -> list[tuple[Any, ...]]:
    """Those of one process: in the k-th is each rank's k-th, of those that have one."""
    of_ranks = [batches_of(part) for part in _parts(arrays, size)]
    steps = [
        [batches[k] for batches in of_ranks if k < len(batches)]
        for k in range(max(map(len, of_ranks)))
    ]
    return [
        tuple(np.concatenate(arrays) for arrays in zip(*step, strict=True))
        for step in steps
    ]


def dataset_of(keras: Any, batches: list[tuple[Any, ...]]) -> Any:
    """A `PyDataset`."""

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, index: int) -> Any:
            return batches[index]

    return Batches()


def _loader(batches: list[tuple[Any, ...]]) -> Any:
    import torch

    as_tensors = [tuple(map(torch.tensor, batch)) for batch in batches]
    return torch.utils.data.DataLoader(as_tensors, batch_size=None)


def trained(name: str, size: int, rank: int | None = None) -> tuple[Any, Any, Any]:
    """Trains with a feature.

    Args:
        name: Of `FITS`.
        size: The number of ranks that there are, or would be.
        rank: Of this process in a job. None: it is alone.

    Returns:
        What `fit` reports, what each callback has heard of batches, and all weights.
    """
    import keras

    fit = dict(FITS[name])
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    x, y, weights = data_of(sum(ROWS_OF_RANKS[size]))
    classifies = fit.pop("classifies", False)
    if classifies:
        y = (y > np.median(y)).astype("float64")
    uses_weights = fit.pop("sample_weight", False)
    arrays = [x, y, weights] if uses_weights else [x, y]

    normalized = fit.pop("normalized", False) and normalization(keras, rank)
    model = network(keras, classifies=classifies, normalized=normalized or None)
    numbers = np.random.default_rng(11)
    model.set_weights([numbers.normal(size=w.shape) for w in model.get_weights()])
    if fit.pop("regularizer", False):
        for layer in model.layers[1:]:
            layer.kernel_regularizer = keras.regularizers.L2(0.05)
    if fit.pop("custom", False):
        model = custom_class(keras)(model.inputs, model.outputs)

    data = fit.pop("data", "dataset")
    epochs = fit.pop("epochs", 2)
    validates = fit.pop("validates", False)
    class_weight = fit.pop("class_weight", None)
    reduction = fit.pop("reduction", "sum_over_batch_size")
    metrics = ["mae", keras.metrics.R2Score(name="r2")] if fit.pop("metrics", 0) else []
    compiled = {
        "jit_compile": fit.pop("jit_compile", on_back_end(torch=False, jax="auto")),
        "run_eagerly": fit.pop("run_eagerly", False),
        "steps_per_execution": fit.pop("steps_per_execution", 1),
    }
    several, scaled = fit.pop("several", False), fit.pop("scaled", False)
    make = getattr(keras.optimizers, fit.pop("optimizer", "SGD"))
    optimizers = [make(fit.pop("learning_rate", 0.02), **fit)]
    if several:
        optimizers.append(keras.optimizers.Adam(0.01))
    losses = keras.losses
    loss = losses.BinaryCrossentropy if classifies else losses.MeanSquaredError
    if rank is not None:
        import ring_keras as ring

        optimizers = [ring.DistributedOptimizer(one) for one in optimizers]
        loss = poisoned(loss)
    optimizer = optimizers[0]
    if several:
        optimizer = keras.optimizers.MultiOptimizer(
            lambda variable: optimizers[len(variable.shape) % 2]
        )
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(
        optimizer,
        loss(reduction=reduction),
        metrics=None if uses_weights else metrics,
        weighted_metrics=metrics if uses_weights else None,
        **compiled,
    )

    if rank is None:
        batches = batches_of_all(arrays, size)
        given = {"x": dataset_of(keras, batches)}
        if validates:
            given["validation_data"] = dataset_of(keras, batches)
    else:
        given = _joined(keras, ring, data, _parts(arrays, size)[rank])
        if validates:
            own = batches_of(_parts(arrays, size)[rank])
            given["validation_data"] = ring.data.join(dataset_of(keras, own))
    heard: list[Any] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: heard.append(("train", batch)),
        on_train_batch_end=lambda batch, logs: heard.append(("trained", batch)),
    )
    note.on_test_batch_begin = lambda batch, logs=None: heard.append(("test", batch))
    note.on_test_batch_end = lambda batch, logs=None: heard.append(("tested", batch))
    history = model.fit(
        **given,
        class_weight=class_weight,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[note],
    ).history
    assert "tensorflow" not in sys.modules
    heard.append(note.params["steps"])
    variables = [*model.weights, *(v for one in optimizers for v in one.variables)]
    own = [v for v in variables if "gradient_accumulator" not in v.path]
    return history, heard, [np.asarray(variable.numpy()) for variable in own]


def _joined(keras: Any, ring: Any, data: str, part: list[Any]) -> dict[str, Any]:
    batches = batches_of(part)
    if data == "arrays":
        x, y = ring.data.join(tuple(part))
        return {"x": x, "y": y, "batch_size": BATCH}
    made = {
        "dataset": lambda: dataset_of(keras, batches),
        "generator": lambda: (batch for batch in batches),
        "loader": lambda: _loader(batches),
    }[data]()
    return {"x": ring.data.join(made)}
