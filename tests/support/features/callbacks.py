"""Keras's callbacks, listed before and after ours, and ours."""

from __future__ import annotations

import contextlib
import csv
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from support import training
from support.features import Difference, Feature
from support.features.compare import compare, standard_callbacks
from support.features.directory import common_directory
from support.features.noisy_labels import (
    EPOCHS,
    STEPS,
    NoisyLabels,
    distributed_model,
    model_alone,
)
from support.features.optimizers import SGD

Callback = keras.callbacks.Callback


def in_any_order(
    make: Callable[[], Callback],
    make_optimizer: Callable[[], object] = SGD,
    epochs: int = EPOCHS,
) -> Difference:
    """A callback that every rank has, before all of ours and after them."""
    data = NoisyLabels()
    found = []
    for first in (True, False):
        model = distributed_model(make_optimizer)
        ours = standard_callbacks()
        callbacks = [make(), *ours] if first else [*ours, make()]
        history = data.fit(model, callbacks, epochs=epochs)
        found.append((model.get_weights(), history))
    state = b"".join(training.as_bytes(weights) for weights, _ in found)
    if ring.rank() != 0:
        return Difference(state=state)
    alone = model_alone(make_optimizer)
    expected = data.fit_alone(alone, [make()], epochs=epochs)
    return Difference(
        max(
            training.largest_difference(weights, alone.get_weights())
            for weights, _ in found
        ),
        max(training.history_difference(history, expected) for _, history in found),
        state,
    )


def writes(
    make: Callable[[Path], Callback],
    read: Callable[[Path], list[np.ndarray]],
    wrap: Callable[[Callback], Callback] = ring.callbacks.RootOnly,
    make_optimizer: Callable[[], object] = SGD,
    before: Sequence[Callable[[], Callback]] = (),
) -> Difference:
    """A callback that writes: every rank reads the same as from one process."""
    data = NoisyLabels()
    found, ours = [], []
    with common_directory() as directory:
        for place in ("first", "last"):
            model = distributed_model(make_optimizer)
            path = directory / place
            mine = [make_one() for make_one in before] + [wrap(make(path))]
            callbacks = standard_callbacks()
            data.fit(model, mine + callbacks if place == "first" else callbacks + mine)
            # At once: the file is complete on every rank.
            ours.append(read(path))
        state = b"".join(training.as_bytes(one) for one in ours)
        if ring.rank() == 0:
            alone = model_alone(make_optimizer)
            path = directory / "alone"
            data.fit_alone(alone, [*(one() for one in before), make(path)])
            found = [training.largest_difference(one, read(path)) for one in ours]
    return Difference(metrics=max(found) if found else None, state=state)


def _saved_model(path: Path) -> list[np.ndarray]:
    files = sorted(path.iterdir())
    assert files, "nothing was saved"
    return [
        weight
        for file in files
        for weight in keras.models.load_model(file).get_weights()
    ]


def _csv(path: Path) -> list[np.ndarray]:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == EPOCHS
    return [np.array([float(row[key]) for row in rows]) for key in sorted(rows[0])]


def _events(path: Path) -> list[np.ndarray]:
    values: dict[str, list[float]] = {}
    for file in sorted(path.glob("*/events*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if value.tag.startswith("epoch_"):
                    number = float(tf.make_ndarray(value.tensor))
                    values.setdefault(f"{file.parent.name}/{value.tag}", []).append(
                        number
                    )
    assert len(values["validation/epoch_loss"]) == EPOCHS
    values.pop("train/epoch_learning_rate", None)
    return [np.array(values[key]) for key in sorted(values)]


def _checkpoint(directory: Path) -> Callback:
    directory.mkdir(exist_ok=True)
    return keras.callbacks.ModelCheckpoint(
        str(directory / "{epoch}.keras"), save_best_only=True, monitor="val_loss"
    )


def _best(directory: Path) -> Callback:
    """Ours on the ranks; Keras's own is what it must be like."""
    directory.mkdir(exist_ok=True)
    if directory.name == "alone":
        return keras.callbacks.ModelCheckpoint(
            str(directory / "best.keras"), save_best_only=True
        )
    checkpoint = ring.callbacks.BestModelCheckpoint()
    checkpoint.filepath = str(directory / "best.keras")
    return checkpoint


class Fails(Callback):
    """As a crash in the third epoch, on all ranks."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def restores(first: bool) -> Difference:
    """A run that fails, and goes on in other processes' places."""
    data = NoisyLabels()
    momentum = functools.partial(SGD, momentum=0.9)
    with common_directory() as directory:

        def backup() -> Callback:
            return ring.callbacks.RootOnly(
                keras.callbacks.BackupAndRestore(str(directory / "backup"))
            )

        def listed(*more: Callback) -> list[Callback]:
            ours = standard_callbacks()
            return [backup(), *ours, *more] if first else [*ours, backup(), *more]

        with contextlib.suppress(KeyboardInterrupt):
            data.fit(distributed_model(momentum), listed(Fails()))
        model = distributed_model(momentum)
        history = data.fit(model, listed())
    assert len(history["loss"]) == EPOCHS - 2
    state = training.as_bytes(model.get_weights())
    if ring.rank() != 0:
        return Difference(state=state)
    alone = model_alone(momentum)
    expected = data.fit_alone(alone, [])
    return Difference(
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.history_difference(
            history, {key: values[2:] for key, values in expected.items()}
        ),
        state,
    )


class ReferenceRate(Callback):
    """Goyal et al.: the rate of every step, and momentum along with it."""

    def __init__(self, correct: bool) -> None:
        super().__init__()
        self.correct = correct

    def on_train_batch_begin(self, batch, logs=None):
        optimizer = self.model.optimizer
        before = float(optimizer.learning_rate.numpy())
        rate = _rate(int(optimizer.iterations))
        optimizer.learning_rate = rate
        for variable in optimizer.variables if self.correct else ():
            if variable.name.endswith("momentum"):
                variable.assign(variable * (rate / before))

    def on_epoch_end(self, epoch, logs=None):
        logs["learning_rate"] = float(self.model.optimizer.learning_rate.numpy())


def _rate(step: int) -> float:
    """A ramp of 7 steps, and half of it in epoch 3."""
    if step >= 3 * STEPS:
        return 0.01 * ring.size() / 2
    return 0.01 * (1 + min(step / 7, 1) * (ring.size() - 1))


def warms_up(
    optimizer: type[keras.optimizers.Optimizer] = keras.optimizers.SGD,
    steps_per_execution: int = 1,
    correct: bool = True,
) -> Difference:
    """Warm-up and a schedule after it, with momentum corrected."""
    data = NoisyLabels()
    make = functools.partial(optimizer, 0.01, momentum=0.9)
    # Not built: its momentum is made while the first step is traced.
    model = training.build(1 + ring.rank())
    training.compile_model(
        model,
        ring.DistributedOptimizer(make()),
        steps_per_execution=steps_per_execution,
    )
    history = data.fit(
        model,
        [
            ring.callbacks.LearningRateWarmup(0.01, 7, momentum_correction=correct),
            *standard_callbacks(),
            ring.callbacks.LearningRateSchedule(
                0.01, 0.5, start_epoch=3, momentum_correction=correct
            ),
        ],
    )
    state = training.as_bytes(model.get_weights())
    if ring.rank() != 0:
        return Difference(state=state)
    alone = model_alone(make)
    alone.optimizer.build(alone.trainable_variables)
    expected = data.fit_alone(alone, [ReferenceRate(correct)])
    return Difference(
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.history_difference(history, expected),
        state,
    )


def _warmup_schedule() -> keras.optimizers.Optimizer:
    decay = keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.9)
    return keras.optimizers.SGD(ring.schedules.Warmup(decay, 6))


KERAS = [
    Feature(
        "EarlyStopping, restore_best_weights",
        functools.partial(
            in_any_order,
            lambda: keras.callbacks.EarlyStopping(
                patience=2, restore_best_weights=True, min_delta=0.001
            ),
            functools.partial(SGD, momentum=0.9),
            12,
        ),
    ),
    Feature(
        "ReduceLROnPlateau",
        functools.partial(
            in_any_order,
            lambda: keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.005),
            functools.partial(SGD, momentum=0.9),
            8,
        ),
    ),
    Feature(
        "LearningRateScheduler",
        functools.partial(
            in_any_order,
            lambda: keras.callbacks.LearningRateScheduler(
                lambda epoch: 0.1 / (1 + epoch)
            ),
        ),
    ),
    Feature(
        "SwapEMAWeights",
        functools.partial(
            in_any_order,
            keras.callbacks.SwapEMAWeights,
            functools.partial(SGD, use_ema=True, ema_momentum=0.9),
        ),
    ),
    Feature(
        "SwapEMAWeights(swap_on_epoch=True), then ModelCheckpoint",
        functools.partial(
            writes,
            _checkpoint,
            _saved_model,
            make_optimizer=functools.partial(SGD, use_ema=True, ema_momentum=0.9),
            before=[lambda: keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
        ),
    ),
    Feature(
        "RootOnly(ModelCheckpoint)",
        functools.partial(writes, _checkpoint, _saved_model),
    ),
    Feature(
        "RootOnly(CSVLogger)",
        functools.partial(
            writes, lambda path: keras.callbacks.CSVLogger(str(path)), _csv
        ),
    ),
    Feature(
        "RootOnly(BackupAndRestore), listed first", functools.partial(restores, True)
    ),
    Feature(
        "RootOnly(BackupAndRestore), listed last", functools.partial(restores, False)
    ),
    Feature(
        "RootOnly(TensorBoard)",
        functools.partial(
            writes, lambda path: keras.callbacks.TensorBoard(str(path)), _events
        ),
        needs="tensorboard",
    ),
]

OURS = [
    Feature(
        "BestModelCheckpoint",
        functools.partial(writes, _best, _saved_model, lambda callback: callback),
    ),
    Feature("LearningRateWarmup, LearningRateSchedule, SGD", warms_up),
    Feature(
        "the same, steps_per_execution",
        functools.partial(warms_up, steps_per_execution=3),
    ),
    Feature(
        "the same, RMSprop",
        functools.partial(warms_up, keras.optimizers.RMSprop),
        # It divides by roots of small averages, and momentum adds up ten steps.
        weight_limit=3e-6,
    ),
    Feature(
        "the same, momentum_correction=False",
        functools.partial(warms_up, correct=False),
    ),
    Feature(
        "schedules.Warmup of a schedule",
        functools.partial(compare, _warmup_schedule, steps=12),
    ),
    Feature(
        "schedules.Warmup, steps_per_execution",
        functools.partial(
            compare,
            _warmup_schedule,
            steps=12,
            compile_model=functools.partial(
                training.compile_model, steps_per_execution=5
            ),
        ),
    ),
]
