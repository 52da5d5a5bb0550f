"""Models whose optimizers' state the ranks divide, and all kinds of such optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ring_keras as ring
from ring_keras.ops.shards import shard_of
from support import training

STEPS = 6


def layers() -> list[keras.layers.Layer]:
    """More variables than ranks, one of them with a constraint.

    Of 2 or 3 ranks several have pieces of the large ones, the last of which does not
    end with a whole vector.
    """
    return [
        keras.layers.Dense(40, activation="tanh", kernel_constraint="max_norm"),
        keras.layers.Dense(25, activation="tanh"),
        keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
    ]


def build(seed: int) -> keras.Model:
    return training.assemble(seed, layers, None)


def adamw_without_biases(**options: Any) -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1, **options)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def decaying(cls: type[keras.optimizers.Optimizer], **options: Any) -> Any:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.8)
    return cls(schedule, **options)


optimizers = keras.optimizers


MAKERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "sgd": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "sgd_without_state": lambda: optimizers.SGD(0.1),
    "adam": lambda: optimizers.Adam(0.01, amsgrad=True),
    "adamw": adamw_without_biases,
    "nadam": lambda: optimizers.Nadam(0.01),
    "adamax": lambda: optimizers.Adamax(0.01),
    "rmsprop": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "lion": lambda: optimizers.Lion(0.01),
    "lamb": lambda: optimizers.Lamb(0.01),
    "adafactor": lambda: optimizers.Adafactor(0.01),
    "adafactor_crossed": lambda: optimizers.Adafactor(
        0.01,
        weight_decay=0.1,
        gradient_accumulation_steps=2,
        global_clipnorm=0.5,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=2,
    ),
    "clipvalue": lambda: optimizers.Adam(0.01, clipvalue=0.01),
    "clipnorm": lambda: optimizers.Adam(0.01, clipnorm=0.05),
    "global_clipnorm": lambda: optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
    "averages": lambda: adamw_without_biases(use_ema=True, ema_momentum=0.5),
    "averages_taken": lambda: optimizers.Lamb(
        0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "schedule": lambda: decaying(optimizers.Adam),
    "accumulation": lambda: decaying(
        optimizers.AdamW, gradient_accumulation_steps=2, global_clipnorm=0.5
    ),
    "accumulated_momentum": lambda: optimizers.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=2
    ),
    "accumulated_averages": lambda: optimizers.SGD(
        0.1,
        momentum=0.9,
        gradient_accumulation_steps=2,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=2,
    ),
    "loss_scaled": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=2
    ),
    "loss_scaled_momentum": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1, momentum=0.9)
    ),
    "loss_scaled_accumulation": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.01, gradient_accumulation_steps=2)
    ),
}


def several(
    bias: keras.optimizers.Optimizer, default: keras.optimizers.Optimizer
) -> keras.optimizers.Optimizer:
    by_name = optimizers.OptimizerMap(default, {".*bias": bias})
    return optimizers.MultiOptimizer(by_name)


needs_several = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="needs a newer Keras"
)
if hasattr(keras.optimizers, "MultiOptimizer"):
    MAKERS["several"] = lambda: several(
        optimizers.SGD(0.1, momentum=0.9, clipnorm=0.05),
        adamw_without_biases(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    )
    MAKERS["several_accumulate"] = lambda: several(
        optimizers.Nadam(0.01, gradient_accumulation_steps=2),
        optimizers.Lamb(0.01, gradient_accumulation_steps=3, global_clipnorm=0.5),
    )
    MAKERS["several_loss_scaled"] = lambda: optimizers.LossScaleOptimizer(
        several(optimizers.Adam(0.01), optimizers.SGD(0.1, momentum=0.9)),
        initial_scale=8.0,
        dynamic_growth_steps=2,
    )
if hasattr(keras.optimizers, "Muon"):  # Older Keras has none.
    MAKERS["muon"] = lambda: optimizers.Muon(0.01, weight_decay=0.1)
    # Of which some variables' updates count steps, and others do not.
    MAKERS["accumulated_muon"] = lambda: optimizers.Muon(
        0.01, gradient_accumulation_steps=2
    )


def fit(name: str, shard_state: bool, **options: Any) -> keras.Model:
    size, rank = ring.size(), ring.rank()
    model = build(1 + rank)
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
    training.compile_model(model, optimizer, **options)
    data = training.dataset(training.steps_of(STEPS, size))  # The last is uneven.
    training.fit(model, ring.data.shard(data, remainder="keep"), training.BATCH)
    return model


def values(optimizer: keras.optimizers.Optimizer) -> list[bytes]:
    return [np.asarray(variable).tobytes() for variable in optimizer.variables]


def require_own_part(
    divided: keras.optimizers.Optimizer, whole: keras.optimizers.Optimizer, name: str
) -> int:
    """Compares what this rank has with all of it; returns how many are not whole."""
    held = 0
    for ours, theirs in zip(divided.variables, whole.variables, strict=True):
        value, shard = np.asarray(theirs), shard_of(ours)
        if shard is not None:
            piece = shard.piece_of(ring.rank())
            if piece is None:
                continue
            value = shard.cut(value, piece)
            held += 1
        assert np.asarray(ours).tobytes() == value.tobytes(), (name, ours.path)
    return held


def state_bytes(optimizer: keras.optimizers.Optimizer) -> int:
    """What this rank has of it."""
    return sum(np.asarray(variable).nbytes for variable in optimizer.variables)


def sharded(name: str = "adam", **options: Any) -> keras.Model:
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=True)
    return training.compile_model(build(1), optimizer, **options)


def shared_data() -> tf.data.Dataset:
    return ring.data.shard(training.dataset(64))


def initialized(worker: Callable[..., Any], *args: Any) -> Any:
    ring.init()
    return worker(*args)


def refused(code: str, call: Callable[[], Any]) -> None:
    """On this rank; the other one is refused, too, and comes here."""
    with pytest.raises((ValueError, ring.RingKerasError), match=rf"\[{code}\]"):
        call()
    assert ring.allgather_object(code) == [code] * ring.size()
