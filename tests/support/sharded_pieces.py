"""A model of few and large variables, of whose optimizers' state ranks have pieces."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np

import ring_keras as ring
from ring_keras.ops.shards import Shard, shard_of
from support.sharded_models import optimizers

WORDS = 100


def build(seed: int) -> keras.Model:
    """One whose variables are few and large.

    A table, of whose gradient a rank has some rows, some of them twice. Of 2 and 3
    ranks pieces of it are rows; of 3 and 4, a piece of the second kernel ends within
    one.
    """
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((8,), dtype="int32"),
            keras.layers.Embedding(WORDS, 64),
            keras.layers.Reshape((8, 8, 8)),
            keras.layers.Conv2D(40, 3, activation="tanh"),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def without_decay_of_tables() -> keras.optimizers.Optimizer:
    optimizer = optimizers.AdamW(0.01, weight_decay=0.1)
    # Keras looks for it in the name of TensorFlow's variable.
    optimizer.exclude_from_weight_decay(var_names=["embedding[_0-9]*/.*:0$"])
    return optimizer


def without_decay_of_first() -> keras.optimizers.Optimizer:
    """By the variable itself, which `build` is not given before."""
    optimizer = optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1)
    build = optimizer.build

    def excluding(variables: list[keras.Variable]) -> None:
        if not optimizer.built:
            optimizer.exclude_from_weight_decay(var_list=variables[1:2])
        build(variables)

    optimizer.build = excluding
    return optimizer


MAKERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd_without_state": lambda: optimizers.SGD(0.1),
    "sgd": without_decay_of_first,
    "sgd_clipped": lambda: optimizers.SGD(0.1, momentum=0.9, clipnorm=0.03),
    "sgd_accumulated": lambda: optimizers.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=3, global_clipnorm=0.03
    ),
    "adam": lambda: optimizers.Adam(0.01),
    "amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True, clipnorm=0.05),
    "adamw": without_decay_of_tables,
    "nadam": lambda: optimizers.Nadam(0.01, weight_decay=0.1),
    "adamax": lambda: optimizers.Adamax(0.01, clipvalue=0.01),
    "rmsprop": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "ftrl": lambda: optimizers.Ftrl(0.1, learning_rate_power=-0.3),
    "lion": lambda: optimizers.Lion(0.01, weight_decay=0.1),
    "averages": lambda: optimizers.Adam(
        0.01,
        global_clipnorm=0.5,
        weight_decay=0.1,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=2,
    ),
    "accumulation": lambda: optimizers.RMSprop(
        0.01, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.5
    ),
    "loss_scaled": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1, global_clipnorm=0.03),
        initial_scale=8.0,
        dynamic_growth_steps=2,
    ),
}


def compiled(
    name: str, shard_state: bool, *, fused: bool = True, **options: object
) -> keras.Model:
    model = build(1 + ring.rank())
    optimizer = ring.DistributedOptimizer(
        MAKERS[name](), shard_state=shard_state, fused_update=fused
    )
    model.compile(optimizer, "binary_crossentropy", **options)
    return model


def own_data() -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(ring.rank())
    return draws.integers(0, WORDS, (16, 8)), draws.integers(0, 2, (16, 1))


def fit(name: str, shard_state: bool, **options: object) -> keras.Model:
    model = compiled(name, shard_state, **options)
    x, y = own_data()
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return model


def shards(model: keras.Model) -> list[Shard]:
    return [shard for v in model.optimizer.variables if (shard := shard_of(v))]
