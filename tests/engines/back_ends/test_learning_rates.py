"""Callbacks that set learning rates on torch and JAX, beside a loop of one process."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from support.back_ends import HAS_EXECUTIONS, begin, needs_back_end, ranks

needs_back_end()

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

STEPS, EPOCHS, BATCH = 5, 4, 8  # The batch is that of all ranks.
RAMP = [0.02 * (1 + step / STEPS) for step in range(STEPS)]
# The ramp, its end, and what the schedule says of the third epoch and the fourth.
RATES = [*RAMP, *[0.04] * STEPS, *[0.01] * STEPS, *[0.005] * STEPS]

# Of each: the optimizer, and what is special about the training.
CASES = {
    "momentum": {"momentum": 0.9, "nesterov": True},
    "uncorrected": {"momentum": 0.9, "corrects": False},
    "rmsprop": {"optimizer": "RMSprop", "momentum": 0.9},
    "adam": {"optimizer": "Adam"},
    "accumulation": {"momentum": 0.9, "gradient_accumulation_steps": 2},
    "loss_scaled": {"momentum": 0.9, "scaled": True},
    "several": {"momentum": 0.9, "several": True},
    "compiled": {"momentum": 0.9, "jit_compile": True},
    "eager": {"momentum": 0.9, "run_eagerly": True},
}
if HAS_EXECUTIONS:
    CASES |= {
        "executions": {"momentum": 0.9, "steps_per_execution": 3},
        "scaled_executions": {
            "momentum": 0.9,
            "scaled": True,
            "steps_per_execution": 2,
            "gradient_accumulation_steps": 2,
        },
    }


def data():
    x = np.random.default_rng(3).normal(size=(STEPS * BATCH, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def compiled(keras, distributed, *, rate=7.0, **case):
    """A model, and the optimizers in it that update weights."""
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(6, "tanh", name="body"),
            keras.layers.Dense(1, name="head"),
        ]
    )
    told = ("jit_compile", "run_eagerly", "steps_per_execution")
    options = {name: case.pop(name) for name in told if name in case}
    several, scaled = case.pop("several", False), case.pop("scaled", False)
    make = getattr(keras.optimizers, case.pop("optimizer", "SGD"))
    inner = [distributed(make(rate, **case)) for _ in range(1 + several)]
    optimizer = inner[0]
    if several:
        rules = keras.optimizers.OptimizerMap(inner[0])
        rules[".*head/.*"] = inner[1]
        optimizer = keras.optimizers.MultiOptimizer(rules)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, loss="mse", **options)
    return model, inner


def state_of(model, inner):
    variables = [*model.weights, *(v for one in inner for v in one.variables)]
    return [np.asarray(variable.numpy()) for variable in variables]


def loop_worker():
    """What the callbacks are to do, written down in a loop of Keras alone."""
    import keras

    found = {}
    for name, case in CASES.items():
        case = {key: v for key, v in case.items() if key != "steps_per_execution"}
        corrects = case.pop("corrects", True)
        model, inner = compiled(keras, lambda one: one, **case)
        x, y = data()
        before = 7.0
        for step, rate in enumerate(RATES):
            for optimizer in inner:
                optimizer.learning_rate = rate
                momentum = {
                    "SGD": "momentums",
                    "RMSprop": "_momentums",
                }.get(type(optimizer).__name__)
                if corrects and momentum and optimizer.built:
                    for variable in getattr(optimizer, momentum):
                        variable.assign(variable * (rate / before))
            before = rate
            rows = slice(step % STEPS * BATCH, (step % STEPS + 1) * BATCH)
            model.train_on_batch(x[rows], y[rows])
        found[name] = state_of(model, inner)
    return found


def callbacks_worker():
    ring = begin()
    import keras

    found = {}
    for name, case in CASES.items():
        case = dict(case)
        corrects = case.pop("corrects", True)
        model, inner = compiled(keras, ring.DistributedOptimizer, **case)
        history = model.fit(
            *ring.data.shard(data()),
            batch_size=BATCH // ring.size(),
            epochs=EPOCHS,
            shuffle=False,
            verbose=0,
            callbacks=[
                ring.callbacks.BroadcastGlobalVariables(0),
                ring.callbacks.MetricAverage(),
                ring.callbacks.LearningRateWarmup(
                    0.02, warmup_epochs=1, scale=2, momentum_correction=corrects
                ),
                ring.callbacks.LearningRateSchedule(
                    0.02,
                    lambda epoch: 0.5**epoch,
                    start_epoch=2,
                    scale=2,
                    momentum_correction=corrects,
                ),
            ],
        ).history
        found[name] = history["learning_rate"], state_of(model, inner)
    # Keras loads TensorFlow by itself, where it is installed.
    assert "ring_keras.callbacks.tensorflow_side" not in sys.modules
    return found


@pytest.fixture(scope="module")
def loop():
    return ranks(loop_worker, 1, timeout_s=300)[0]


@pytest.fixture(scope="module", params=[1, 2])
def everyone(request):
    return ranks(callbacks_worker, request.param, timeout_s=300)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_a_loop_that_sets_rates(name, loop, everyone):
    for of_rank in everyone:
        rates, state = of_rank[name]
        np.testing.assert_allclose(rates, [0.036, 0.04, 0.01, 0.005], rtol=1e-6)
        for one, other in zip(state, loop[name], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        for one, other in zip(state, everyone[0][name][1], strict=True):
            np.testing.assert_array_equal(one, other)


def rates_worker(options, arguments, optimizer_steps):
    """The rate after each step, and of the second `fit`; one has failed between."""
    ring = begin()
    import keras

    seen = []

    class Sees(keras.callbacks.Callback):
        fails = False

        def on_train_batch_end(self, batch, logs=None):
            seen.append(float(self.model.optimizer.learning_rate.numpy()))
            if self.fails and batch == 1:
                raise OSError("no disk")

    model, (optimizer,) = compiled(keras, ring.DistributedOptimizer, **options)
    if optimizer_steps:
        optimizer.build(model.trainable_variables)
        optimizer.iterations.assign(optimizer_steps)
    rules = [
        ring.callbacks.LearningRateWarmup(0.02, warmup_epochs=2),
        ring.callbacks.LearningRateSchedule(
            0.02, lambda epoch: 0.5**epoch, start_epoch=2
        ),
    ]
    fit = {"batch_size": BATCH // ring.size(), "verbose": 0, "shuffle": False}
    own = ring.data.shard(data())
    sees = Sees()
    model.fit(*own, **fit, **arguments, callbacks=[*rules, sees])
    found = [*seen]
    sees.fails = True
    with pytest.raises(OSError, match="no disk"):
        model.fit(*own, **fit, callbacks=[*rules, sees])
    sees.fails = False
    seen.clear()
    optimizer.learning_rate = 0.5
    model.fit(*own, **fit, callbacks=[sees])
    return found, seen


@pytest.mark.parametrize("per_execution", [1, 2] if HAS_EXECUTIONS else [1])
@pytest.mark.parametrize("steps", [0, 4 * STEPS, 40 * STEPS])
def test_epochs_begin_with_the_initial_one(steps, per_execution):
    given = {"initial_epoch": 4, "epochs": 7}
    options = {"momentum": 0.9, "steps_per_execution": per_execution}
    executions = math.ceil(STEPS / per_execution)  # The last one has fewer steps.
    for rates, after in ranks(rates_worker, 2, options, given, steps):
        expected = [0.04 / 2**epoch for epoch in (4, 5, 6) for _ in range(executions)]
        np.testing.assert_allclose(rates, expected, rtol=1e-6)
        # None of a `fit` before is left.
        np.testing.assert_allclose(after, [0.5] * executions, rtol=1e-6)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (1, {"steps_per_execution": 2}),
        (2, {"steps_per_execution": 2, "gradient_accumulation_steps": 3}),
    ]
    if HAS_EXECUTIONS
    else [(2, {"gradient_accumulation_steps": 3})],
)
def test_rates_follow_the_number_of_ranks_and_of_batches(size, options):
    per_execution = options.get("steps_per_execution", 1)
    ramp = [0.02 * (1 + (size - 1) * step / (2 * STEPS)) for step in range(2 * STEPS)]
    rates = [*ramp, *[0.02 * size / 4] * STEPS]
    last = [n for n in range(3 * STEPS) if (n % STEPS + 1) in (2, 4, 5)]
    seen = rates if per_execution == 1 else [rates[n] for n in last]
    for found, after in ranks(rates_worker, size, options, {"epochs": 3}, 0):
        np.testing.assert_allclose(found, seen, rtol=1e-6)
        assert set(after) == {0.5}


def refused_worker():
    ring = begin()
    import keras

    def message_of(callbacks, **options):
        model, _ = compiled(keras, ring.DistributedOptimizer, **options)
        try:
            model.fit(*ring.data.shard(data()), verbose=0, callbacks=callbacks)
        except Exception as error:
            return type(error).__name__, str(error)
        return None

    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    warmup = ring.callbacks.LearningRateWarmup(0.1, 5)
    found = [
        message_of([warmup], rate=decay),
        message_of([warmup] if ring.rank() else []),
    ]
    model, (optimizer,) = compiled(keras, lambda one: one)
    model.fit(
        *ring.data.shard(data()),
        verbose=0,
        callbacks=[ring.callbacks.BroadcastGlobalVariables(), warmup],
    )
    # In the optimizer a ramp is a schedule, which is saved with it.
    rate = ring.schedules.Warmup(decay, 4)
    config = keras.optimizers.serialize(keras.optimizers.SGD(rate))
    again = keras.optimizers.deserialize(config).learning_rate
    rates = [float(rate(step)) for step in (0, 2, 4)]
    return found, float(optimizer.learning_rate.numpy()), rates, float(again)


def test_what_cannot_be_set_is_refused_on_all_ranks():
    for found, rate, rates, again in ranks(refused_worker, 2):
        assert found[0][0] == "ValueError"
        assert found[0][1].startswith("[RK621] LearningRateWarmup sets the learning")
        assert "follows a LearningRateSchedule" in found[0][1]
        assert found[1][0] == "RankMismatchError"
        assert found[1][1].startswith("[RK326] fit(): callbacks differ across ranks")
        assert rate == pytest.approx(0.1)  # One step of the ramp.
        expected = [0.1, 0.15 * 0.5 ** (2 / 3), 0.2 * 0.5 ** (4 / 3)]
        assert rates == pytest.approx(expected, rel=1e-5)
        assert again == pytest.approx(0.1)
