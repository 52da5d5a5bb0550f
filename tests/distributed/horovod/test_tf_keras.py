"""Keras 2, which `TF_USE_LEGACY_KERAS=1` makes of `tf.keras`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import ring_keras.horovod.tensorflow as hvd
import ring_keras.horovod.tensorflow.keras as hvd_keras

pytest.importorskip("tf_keras")
ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1"}

COUNT, BATCH, EPOCHS = 16, 4, 2


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(COUNT, 3)).astype("float32")
    return inputs, (inputs.sum(1, keepdims=True) + 1).astype("float32")


def build(seed: int, *, built: bool = True):
    tf.keras.utils.set_random_seed(seed)
    layers = [tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    if built:
        model.build((None, 3))
    return model


def optimizers(keras):
    return {
        "newer": lambda: keras.optimizers.SGD(0.1, momentum=0.5),
        "older": lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.5),
        "adam": lambda: keras.optimizers.Adam(0.1, clipnorm=0.5),
    }


def fit(model, inputs, targets, batch_size, **options):
    """Without shuffling; returns the history."""
    options = {"shuffle": False, "verbose": 0, "epochs": EPOCHS} | options
    return model.fit(inputs, targets, batch_size=batch_size, **options).history


def check_training() -> None:
    """All ranks together train as one process with the global batch."""
    assert tf.keras.__name__.startswith("tf_keras") or "legacy" in str(tf.keras)
    size, rank = hvd.size(), hvd.rank()
    inputs, targets = data()
    for name, make in optimizers(tf.keras).items():
        alone = build(0)
        alone.compile(make(), "mse", metrics=["mae"])
        expected = fit(alone, inputs, targets, BATCH * size)

        together = build(rank)
        optimizer = make()
        assert hvd_keras.DistributedOptimizer(optimizer) is optimizer
        together.compile(optimizer, "mse", metrics=["mae"])
        callbacks = [
            hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd_keras.callbacks.MetricAverageCallback(),
        ]
        part = slice(rank, None, size)
        got = fit(together, inputs[part], targets[part], BATCH, callbacks=callbacks)
        for ours, theirs in zip(
            together.get_weights(), alone.get_weights(), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=name)
        for metric in ("loss", "mae"):
            np.testing.assert_allclose(got[metric], expected[metric], rtol=1e-4)
        with pytest.raises(ValueError, match="already"):
            hvd_keras.DistributedOptimizer(optimizer)


def check_tape_and_late_variables() -> None:
    rank = hvd.rank()
    inputs, targets = data()
    model = build(rank, built=False)
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)), "mse")
    callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, inputs, targets, BATCH, callbacks=[callback])
    weights = np.concatenate([w.ravel() for w in model.get_weights()])
    gathered = hvd.allgather(weights[None]).numpy()
    assert (gathered == gathered[0]).all()
    with tf.GradientTape() as tape:
        loss = (rank + 1.0) * tf.reduce_sum(model.trainable_variables[0])
    tape = hvd.DistributedGradientTape(tape)
    (gradient,) = tape.gradient(loss, model.trainable_variables[:1])
    assert (gradient.numpy() == (hvd.size() + 1) / 2).all()


def check_loss_scale() -> None:
    """A gradient that is infinite on one rank skips the step on all."""
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = build(0)
        optimizer = hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
        model.compile(optimizer, "mse")  # Wraps it.
        assert type(model.optimizer).__name__.startswith("LossScaleOptimizer")
        inputs, targets = data()
        fit(model, inputs, targets, BATCH)
        before = model.get_weights()
        if hvd.rank() == 0:
            targets = targets * np.inf
        fit(model, inputs[:BATCH], targets[:BATCH], BATCH, epochs=1)
        for ours, theirs in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def check_learning_rates() -> None:
    size, rank = hvd.size(), hvd.rank()
    inputs, targets = data()
    for legacy in (False, True):
        model = build(0)
        keras = tf.keras.optimizers.legacy if legacy else tf.keras.optimizers
        rate = 0.1 * size
        optimizer = hvd_keras.DistributedOptimizer(keras.SGD(rate, momentum=0.9))
        model.compile(optimizer, "mse")
        callbacks = [
            hvd_keras.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=1),
            hvd_keras.callbacks.LearningRateScheduleCallback(
                rate, 0.5, start_epoch=2, momentum_correction=False
            ),
        ]
        got = fit(model, inputs, targets, BATCH, epochs=3, callbacks=callbacks)
        steps = COUNT // BATCH
        last_of_ramp = 0.1 * (1 + (size - 1) * (steps - 1) / steps)
        np.testing.assert_allclose(got["lr"], [last_of_ramp, rate, rate / 2], rtol=1e-6)
    assert rank in range(size)


def check_local_layers() -> None:
    size, rank = hvd.size(), hvd.rank()
    model = build(0)
    first, second = model.layers
    with tf.GradientTape() as tape:
        sums = [tf.reduce_sum(v) for v in model.trainable_variables]
        loss = (rank + 1.0) * tf.add_n(sums)
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=first)
    kept, reduced = tape.gradient(loss, [first.kernel, second.kernel])
    assert kept.numpy() == pytest.approx((rank + 1) / size)
    assert reduced.numpy() == pytest.approx((size + 1) / 2)
    optimizer = hvd_keras.PartialDistributedOptimizer(
        tf.keras.optimizers.SGD(1.0), local_layers=[first], scale_local_gradients=False
    )
    before = [first.bias.numpy(), second.bias.numpy()]
    ones = [(rank + 1.0) * tf.ones_like(b) for b in before]
    optimizer.apply_gradients(zip(ones, [first.bias, second.bias], strict=True))
    assert before[0] - first.bias.numpy() == pytest.approx(rank + 1.0)
    assert before[1] - second.bias.numpy() == pytest.approx((size + 1) / 2)


def check_what_is_not_there() -> None:
    adam = tf.keras.optimizers.Adam()
    with pytest.raises(NotImplementedError, match="backward_passes_per_step=2"):
        hvd_keras.DistributedOptimizer(adam, backward_passes_per_step=2)
    with pytest.raises(NotImplementedError, match="SyncBatchNormalization"):
        hvd.SyncBatchNormalization()
    with pytest.raises(NotImplementedError, match="ModelCheckpoint"):
        hvd_keras.callbacks.BestModelCheckpoint()


# To import it takes most of their time.
@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        check_training,
        check_tape_and_late_variables,
        check_loss_scale,
        check_learning_rates,
        check_local_layers,
        check_what_is_not_there,
    ],
)
def test_tf_keras(rank_pool, check):
    rank_pool(2, env=ENVIRONMENT).run(check)
