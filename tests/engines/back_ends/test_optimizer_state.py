"""What the ranks have in common of every optimizer of Keras, on torch and JAX."""

from __future__ import annotations

import numpy as np
import pytest
from support.back_ends import begin, needs_back_end, on_back_end, ranks

needs_back_end()

pytestmark = pytest.mark.engines


def optimizers(keras):
    """One of each kind, as in a model: by name, with its variables."""
    kinds = {
        name: kind
        for name, kind in vars(keras.optimizers).items()
        if isinstance(kind, type)
        and issubclass(kind, keras.optimizers.Optimizer)
        and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
    }
    assert {"Adafactor", "Muon", "Nadam", "SGD"} <= set(kinds)
    made = {}
    for name, kind in kinds.items():
        needs = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
        for wraps in (False, True):
            for more in (
                {},
                {"use_ema": True},
                {"gradient_accumulation_steps": 2},
            ):
                if wraps and name == "Muon":
                    continue
                one = kind(**needs, **more)
                words = [name, *more, *(["scaled"] if wraps else [])]
                if wraps:
                    one = keras.optimizers.LossScaleOptimizer(one)
                weights = [
                    keras.Variable(np.ones(shape, "float32"), name=f"weight{number}")
                    for number, shape in enumerate([(4, 3), (3,)])
                ]
                one.build(weights)
                made[" ".join(words)] = one
    return made


def variables_in(value, keras, found, seen):
    """All that an object of Keras keeps anywhere."""
    if id(value) in seen:
        return found
    seen.add(id(value))
    if isinstance(value, keras.Variable):
        found[id(value)] = value
    elif isinstance(value, keras.optimizers.Optimizer):
        variables_in(dict(vars(value)), keras, found, seen)
    elif isinstance(value, dict):
        for one in list(value.values()):
            variables_in(one, keras, found, seen)
    elif isinstance(value, (list, tuple, set)):
        for one in list(value):
            variables_in(one, keras, found, seen)
    return found


def list_worker():
    begin()
    import keras

    from ring_keras.backends.common.hook import common_state

    missing = {}
    for name, optimizer in optimizers(keras).items():
        innermost = getattr(optimizer, "inner_optimizer", optimizer)
        kept = variables_in(optimizer, keras, {}, set())
        common = {id(one) for one in common_state([optimizer])}
        trained = {id(one) for one in innermost._trainable_variables}
        missing[name] = [
            one.path
            for key, one in kept.items()
            if key not in common | trained
            # What each rank adds up itself.
            and "gradient_accumulator" not in one.name
            # What stands for no variable, and is never written to.
            and not (one.name.startswith("weight") and not one.shape)
        ]
    return missing


def test_nothing_of_an_optimizer_is_left_out():
    (missing,) = ranks(list_worker, 1)

    assert len(missing) > 40
    assert {name: paths for name, paths in missing.items() if paths} == {}


def scaled_worker():
    """Rank 0 goes on with an optimizer that has taken steps, rank 1 with a new one."""
    ring = begin()
    import keras

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(ring.rank()).normal(size=(12, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    inner = ring.DistributedOptimizer(keras.optimizers.Nadam(0.05))
    model.compile(keras.optimizers.LossScaleOptimizer(inner), "mse")
    model.optimizer.build(model.trainable_variables)
    inner._u_product.assign(0.25 if ring.rank() == 0 else 1.0)
    if ring.rank() == 0:
        inner.iterations.assign(3)
    model.fit(x, y, batch_size=6, epochs=2, verbose=0)
    return float(inner._u_product.numpy()), [w.numpy() for w in model.weights]


def test_what_a_wrapped_optimizer_multiplies_is_that_of_the_first_rank():
    first, second = ranks(scaled_worker, 2, timeout_s=120)

    assert first[0] == second[0]
    # Keras loses it on JAX after each step.
    assert first[0] < 0.25 if on_back_end(torch=True) else first[0] == 0.25
    for one, other in zip(first[1], second[1], strict=True):
        np.testing.assert_array_equal(one, other)


def apart_worker():
    """A rank's product changes in the middle of an epoch, past what is reduced."""
    ring = begin()
    import keras

    x = np.random.default_rng(ring.rank()).normal(size=(24, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    inner = ring.DistributedOptimizer(keras.optimizers.Nadam(0.05))
    model.compile(keras.optimizers.LossScaleOptimizer(inner), "mse")

    class Changes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1 and ring.rank() == 1:
                inner._u_product.assign(inner._u_product * 0.5)

    with pytest.raises(ring.RankMismatchError, match=r"RK324.* 2 steps after"):
        model.fit(x, y, batch_size=6, verbose=0, callbacks=[Changes()])


def test_it_is_compared_in_the_middle_of_an_epoch():
    ranks(apart_worker, 2, env={"RING_KERAS_CHECK_STEPS": "1"}, timeout_s=60)
