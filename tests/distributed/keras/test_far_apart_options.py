"""What is set on an optimizer whose ranks train apart is that of the one inside."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.far_apart import batches_of, step_of

import ring_keras as ring


def adamw():
    return keras.optimizers.AdamW(0.01, weight_decay=0.5)


def scaled():
    return keras.optimizers.LossScaleOptimizer(adamw())


def average(inner):
    return ring.DistributedOptimizer(inner, sync_every=4)


def diloco(inner):
    return ring.DiLoCo(inner, sync_every=4)


def trained(optimizer, innermost, set_up):
    """The weights after two steps of this rank, of which no meeting is one."""
    model = training.build(1)
    set_up(optimizer, model)
    assert innermost is optimizer or not vars(optimizer).get("weight_decay")
    loss = keras.losses.BinaryCrossentropy()
    for x, y in batches_of(ring.rank(), ring.size(), 4)[:2]:
        with tf.GradientTape() as tape:
            value = optimizer.scale_loss(loss(y, model(x, training=True)))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(value, variables), variables)
    return model.get_weights()


def exclude_biases(optimizer, model):
    optimizer.exclude_from_weight_decay(var_names=["bias"])


def exclude_one(optimizer, model):
    optimizer.exclude_from_weight_decay([model.layers[-1].kernel])


def clip(optimizer, model):
    assert optimizer.clipnorm is None
    optimizer.clipnorm = 0.01
    assert optimizer.clipnorm == 0.01


def decay(optimizer, model):
    assert optimizer.weight_decay == 0.5
    optimizer.weight_decay = 0.25
    assert optimizer.weight_decay == 0.25


def nothing(optimizer, model):
    pass


SET_UP = [exclude_biases, exclude_one, clip, decay]


def options_worker():
    """How far each is from Keras's optimizer alone, and that from one without it."""
    found = []
    for set_up in SET_UP:
        inner = adamw()
        plain = trained(inner, inner, set_up)
        without = adamw()
        other = training.largest_difference(plain, trained(without, without, nothing))
        for around, make in ((diloco, adamw), (average, adamw), (diloco, scaled)):
            inner = make()
            ours = trained(around(inner), inner, set_up)
            found.append((training.largest_difference(plain, ours), other))
    return found


def test_what_is_set_is_set_inside(rank_pool):
    for found in rank_pool(2).run(options_worker):
        for difference, other in found:
            assert difference < 1e-6 < 1e-5 < other


def fixed_worker():
    """What the optimizer inside must be made with."""
    optimizer = diloco(keras.optimizers.SGD(0.1, loss_scale_factor=8.0))
    assert float(optimizer.scale_loss(2.0)) == 16.0
    for name, value in {
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 10,
        "gradient_accumulation_steps": 2,
        "loss_scale_factor": 4.0,
    }.items():
        before = getattr(optimizer, name)
        with pytest.raises(ValueError, match=rf"RK343\] `{name}` cannot be set"):
            setattr(optimizer, name, value)
        setattr(optimizer, name, before)
        assert getattr(optimizer, name) == before


def test_what_cannot_be_set_is_refused(rank_pool):
    rank_pool(2).run(fixed_worker)


def set_weights_worker():
    """All that one has had is put into another one."""
    optimizer, other = (diloco(scaled()) for _ in range(2))
    model = training.build(1)
    with pytest.raises(ValueError, match="not yet been built"):
        other.set_weights([])
    other.build(model.trainable_variables)
    model.compile(optimizer)
    step = step_of(model)
    for batch in batches_of(ring.rank(), ring.size(), 7)[:6]:
        step(*batch)
    values = [np.asarray(variable) for variable in optimizer.variables]
    other.set_weights(values)
    for variable, value in zip(other.variables, values, strict=True):
        np.testing.assert_array_equal(variable, value)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        other.set_weights([np.zeros_like(value) for value in values[:-1]])
    np.testing.assert_array_equal(other.variables[0], values[0])
    return len(values)


def test_all_weights_of_the_optimizer_can_be_set(rank_pool):
    first, second = rank_pool(2).run(set_weights_worker)

    assert first == second > 8


# Those that are about the optimizer itself, or change the variable they are given.
OF_ITSELF = {
    "add_optimizer_variables",
    "add_variable",
    "add_variable_from_reference",
    "apply_gradients",  # Calls `apply`.
    "assign",
    "assign_add",
    "assign_sub",
    "built",
    "name",
    "save_own_variables",  # Of `variables`.
    "stateless_apply",  # Which TensorFlow does not have.
    "update_step",
}


def test_nothing_that_keras_has_is_taken_and_not_passed_on():
    known = {*OF_ITSELF, *vars(ring.DiLoCo)}

    names = {name for name in dir(keras.optimizers.Optimizer(0.1)) if name[0] != "_"}

    assert names - known == set()
