"""What Keras on JAX has alone: threads, and what JAX has compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from engines.back_ends.test_fit_failures import (
    assert_equal_on_all,
    data_of,
    message_of,
    state_of,
)
from support.back_ends import needs_back_end, ranks

needs_back_end()

jax = pytest.importorskip("jax", reason="`make test-engines`")

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("chosen", [None, "OMP_NUM_THREADS", "PJRT_NPROC"])
def test_ranks_of_a_host_divide_its_cores(tmp_path, chosen):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, ring_keras as ring\n"
        "ring.init()\n"
        "print('threads', os.environ['PJRT_NPROC'])\n"
    )
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "PJRT_NPROC")
    env = {name: value for name, value in os.environ.items() if name not in names}
    ended = subprocess.run(
        [sys.executable, "-m", "ring_keras.launch", "-np", "2", sys.executable, script],
        env=env | {"KERAS_BACKEND": "jax"} | ({chosen: "2"} if chosen else {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    expected = 2 if chosen else max(1, len(os.sched_getaffinity(0)) // 2)
    assert ended.stdout.count(f"threads {expected}\n") == 2, ended.stdout


def memberships_worker():
    """What was compiled for a job that is over is compiled anew."""
    import keras

    import ring_keras as ring

    ring.init()
    rank = ring.rank()
    keras.utils.set_random_seed(rank)
    x, y = data_of(rank)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
    fit = {"batch_size": 6, "verbose": 0, "shuffle": False}
    model.train_on_batch(x[:6], y[:6])
    model.fit(x, y, **fit)
    function = model.train_function
    model.fit(x, y, **fit)
    is_kept = model.train_function is function
    ring.shutdown()
    between = message_of(lambda: model.fit(x, y, **fit))
    ring.init()
    is_stale = model.train_function is function
    model.fit(x, y, **fit)
    is_anew = model.train_function is not function
    # A model that another optimizer has trained, and that is not compiled anew.
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    other.compile("sgd", loss="mse")
    other.fit(x, y, **fit)
    other.optimizer = ring.DistributedOptimizer("sgd")
    other.optimizer.build(other.trainable_variables)
    other.fit(x, y, **fit)
    return is_kept, between, is_stale and is_anew, state_of(model) + state_of(other)


def test_nothing_compiled_outlives_its_job():
    found = ranks(memberships_worker, 2)

    for is_kept, between, is_anew, _ in found:
        assert is_kept
        assert between[0] == "NotInitializedError", between
        assert is_anew
    assert_equal_on_all([state for *_, state in found])


def own_loop_worker():
    """A compiled step of one's own, and ranks that begin with other weights."""
    import keras

    import ring_keras as ring

    ring.init()
    keras.utils.set_random_seed(ring.rank())
    x, y = data_of(ring.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    optimizer.build(model.trainable_variables)

    def loss_of(trained, others, x, y):
        outputs, others = model.stateless_call(trained, others, x)
        return keras.ops.mean(keras.ops.square(outputs - y)), others

    @jax.jit
    def step(state, x, y):
        trained, others, of_optimizer = state
        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            trained, others, x, y
        )
        trained, of_optimizer = optimizer.stateless_apply(
            of_optimizer, gradients, trained
        )
        return loss, (trained, others, of_optimizer)

    def state():
        return (
            [v.value for v in model.trainable_variables],
            [v.value for v in model.non_trainable_variables],
            [v.value for v in optimizer.variables],
        )

    differ = [message_of(lambda: step(state(), x, y))]
    ring.broadcast_variables(model.variables)
    optimizer.variables[-1].assign(optimizer.variables[-1] + ring.rank())
    differ.append(message_of(lambda: step(state(), x, y)))
    ring.broadcast_variables(optimizer.variables)
    before = [np.asarray(v) for v in model.weights]
    now = state()
    for first in range(0, 24, 6):
        _, now = step(now, x[first : first + 6], y[first : first + 6])
    return differ, before, [np.asarray(v) for v in now[0]]


def test_a_loop_of_ones_own_averages_too():
    found = ranks(own_loop_worker, 2)

    for differ, *_ in found:
        for (kind, text), variable in zip(differ, ("kernel", "momentum"), strict=True):
            assert kind == "RankMismatchError"
            assert text.startswith("[RK663] before the first step of SGD")
            assert variable in text
    assert_equal_on_all([trained for *_, trained in found])
    # The same in NumPy, on both ranks' batches.
    (weight, bias), velocity = found[0][1], [0.0, 0.0]
    for first in range(0, 24, 6):
        gradients = []
        for rank in range(2):
            x, y = (part[first : first + 6] for part in data_of(rank))
            error = 2 * (x @ weight + bias - y) / 6
            gradients.append((x.T @ error, error.sum(0)))
        for place, pair in enumerate(zip(*gradients, strict=True)):
            velocity[place] = 0.9 * velocity[place] - 0.05 * sum(pair) / 2
        weight, bias = weight + velocity[0], bias + velocity[1]
    np.testing.assert_allclose(found[0][2][0], weight, rtol=1e-5)
    np.testing.assert_allclose(found[0][2][1], bias, rtol=1e-5)


def differing_worker():
    import keras

    import ring_keras as ring

    ring.init()
    x, y = data_of(ring.rank())
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3 + ring.rank()), keras.layers.Dense(1)]
    )
    model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
    differ = message_of(lambda: model.fit(x, y, verbose=0))
    kept = [np.asarray(weight) for weight in model.weights]
    return differ, [one.shape for one in kept]


def test_models_that_differ_are_told_and_kept():
    found = ranks(differing_worker, 2)

    for rank, (differ, shapes) in enumerate(found):
        assert differ[0] == "RankMismatchError"
        assert differ[1].startswith("[RK326] fit(): shapes of weights")
        assert shapes[0] == (4, 3 + rank)


def own_step_worker():
    """A `train_step` of the model's own is there after each compilation."""
    import keras

    import ring_keras as ring

    ring.init()
    x, y = data_of(ring.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    whole, calls = model.train_step, []

    def train_step(state, data):
        calls.append(1)
        return whole(state, data)

    model.train_step = train_step
    for _ in range(2):
        model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
        model.fit(x, y, verbose=0)
    model.train_on_batch(x, y, None, {0: 1.0, 1: 2.0})

    class Own(keras.Model):
        def make_train_function(self, force=False):
            self.train_function = lambda state, iterator: ({}, state)

    own = Own(model.inputs, model.outputs)
    own.compile(ring.DistributedOptimizer("sgd"), loss="mse")
    return len(calls), message_of(lambda: own.fit(x, y, verbose=0))


def test_a_step_of_the_models_own_stays():
    for calls, own in ranks(own_step_worker, 2):
        assert calls == 3  # Traced for each, and for the batch's weights.
        assert own[1].startswith("[RK660] model 'own' makes its train function itself")


def failing_worker():
    """Errors in places where Keras has taken the weights; then all train again."""
    import keras

    import ring_keras as ring

    ring.init()
    rank = ring.rank()
    x, y = data_of(rank)
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = ring.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, loss="mse", steps_per_execution=3)

    class Fails(keras.callbacks.Callback):
        """Before the others take a step. Later they would be within it (RK664)."""

        def __init__(self, epoch):
            super().__init__()
            self.epoch = epoch

        def on_epoch_begin(self, epoch, logs=None):
            if rank == 1 and epoch == self.epoch:
                raise OSError("no disk")

    class Batches(keras.utils.PyDataset):
        def __init__(self, fails):
            super().__init__()
            self.fails = fails

        def __len__(self):
            return 4

        def __getitem__(self, index):
            if rank == 1 and index == self.fails:
                raise OSError("no disk")
            return x[6 * (index % 4) : 6 * (index % 4) + 6], y[:6]

    fit = {"verbose": 0, "shuffle": False}
    found = []
    for data, callback in [
        (Batches(None), Fails(0)),
        (Batches(0), Fails(None)),
        (Batches(1), Fails(None)),
        (Batches(3), Fails(None)),
    ]:
        error = message_of(lambda: model.fit(data, callbacks=[callback], **fit))  # noqa: B023
        found.append((error, all(v.numpy() is not None for v in model.variables)))
        model.fit(Batches(None), **fit)
    return found, state_of(model), int(model.optimizer.iterations)


def test_an_error_leaves_all_ranks_their_weights():
    everyone = ranks(failing_worker, 2)

    for rank, (found, _, _) in enumerate(everyone):
        for error, _ in found:
            assert "no disk" in error[1], error
            assert error[0] == ("OSError" if rank else "RankMismatchError"), error
    assert_equal_on_all([state for _, state, _ in everyone])
    # Four whole fits; and of those that failed, the steps before the error.
    assert everyone[0][2] == everyone[1][2] == 4 * 4 + 0 + 0 + 1 + 3


def two_worker(alone, kind):
    """Two optimizers in one step, each with collectives in branches of its own."""
    import keras

    rows = 24
    numbers = np.random.default_rng(5)
    x = numbers.normal(size=(rows, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    passes = 2 if kind == "accumulation" else None
    inner = [
        keras.optimizers.SGD(rate, gradient_accumulation_steps=passes)
        for rate in (0.05, 0.02)
    ]
    size = 1
    if not alone:
        import ring_keras as ring

        ring.init()
        size = ring.size()
        inner = [ring.DistributedOptimizer(one) for one in inner]
        x, y = ring.data.shard((x, y))
    wrap = keras.optimizers.LossScaleOptimizer
    optimizers = inner if passes else [wrap(one, 8.0) for one in inner]

    class Two(keras.Model):
        """Each half of the weights has an optimizer."""

        def train_step(self, state, data):
            trained, others, first, of_metrics = state
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)

            def loss_of(values):
                outputs, new = self.stateless_call(values, others, x, training=True)
                loss = keras.ops.mean(keras.ops.square(outputs - y))
                return loss if passes else loss * 8.0, new

            (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(
                trained
            )
            count = len(optimizers[0].variables)
            new, left = [], []
            for half, (one, state_of_one) in enumerate(
                zip(optimizers, (first[:count], first[count:]), strict=True)
            ):
                place = slice(2 * half, 2 * half + 2)
                values, kept = one.stateless_apply(
                    state_of_one, gradients[place], trained[place]
                )
                new += values
                left += kept
            return {"loss": loss}, (new, others, left, of_metrics)

    inputs = keras.Input((4,))
    keras.utils.set_random_seed(3)
    hidden = keras.layers.Dense(3)(inputs)
    model = Two(inputs, keras.layers.Dense(1)(hidden))

    class Both(keras.optimizers.Optimizer):
        """Has the state of both, which the step divides."""

        def __init__(self):
            super().__init__(0.1)
            self.built = True

        @property
        def variables(self):
            return [v for one in optimizers for v in one.variables]

    for half, one in enumerate(optimizers):
        one.build(model.trainable_variables[2 * half : 2 * half + 2])
    model.both = optimizers
    model.compile(Both(), loss="mse")
    model.fit(x, y, batch_size=6 // size, epochs=2, verbose=0, shuffle=False)
    return [np.asarray(weight) for weight in model.weights]


@pytest.mark.parametrize("kind", ["accumulation", "loss scaling"])
def test_two_optimizers_with_branches(kind):
    (alone,) = ranks(two_worker, 1, True, kind)
    for weights in ranks(two_worker, 2, False, kind):
        for got, wanted in zip(weights, alone, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def lost_values_worker(units, way):
    """A collective fails in the second step, as it runs."""
    import keras

    import ring_keras as ring

    ring.init()
    rank = ring.rank()
    x, y = data_of(rank, 3000)
    keras.utils.set_random_seed(1)

    class Odd(keras.layers.Layer):
        """Another shape on one rank, for batches of another size."""

        def call(self, inputs):
            if inputs.shape[0] == 999:
                ring.allreduce(inputs[: 1 + rank], name="odd")
            return inputs

    layers = [keras.layers.Dense(units) for _ in range(3)]
    model = keras.Sequential([keras.Input((4,)), *layers, Odd(), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer("sgd"), loss="mse")

    def batches():
        yield x[:1000], y[:1000]
        yield x[:999], y[:999]

    if way == "fit":
        first = message_of(lambda: model.fit(batches(), verbose=0))
    else:
        model.train_on_batch(x[:1000], y[:1000])
        first = message_of(lambda: model.train_on_batch(x[:999], y[:999]))
    then = message_of(lambda: model.fit(batches(), verbose=0))
    batch = message_of(lambda: model.train_on_batch(x[:1000], y[:1000]))
    again = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    again.compile(ring.DistributedOptimizer("sgd"), loss="mse")
    again.fit(x, y, verbose=0)
    return first, then, batch, state_of(again)


@pytest.mark.parametrize("way", ["fit", "train_on_batch"])
@pytest.mark.parametrize("units", [2, 1024])
def test_values_that_a_failed_step_has_taken_are_told_of(units, way):
    """Small steps fail as they are called, large ones as they are waited for."""
    found = ranks(lost_values_worker, 2, units, way)

    for first, then, batch, _ in found:
        assert first[0] == "RankMismatchError"
        assert "shape differs across ranks" in first[1]
        assert then[1].startswith("[RK664] model 'sequential' has lost its values")
        assert batch[1].startswith("[RK664]")
    assert_equal_on_all([state for *_, state in found])


def complex_worker():
    """A gradient of a type that no collective moves, which is longer than it looks."""
    import keras

    import ring_keras as ring

    ring.init()
    weight = keras.Variable(jax.numpy.ones(4, "complex64"), dtype="complex64")
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build([weight])
    gradient = jax.numpy.full(4, 1.0 + ring.rank(), "complex64")
    return message_of(lambda: optimizer.apply([gradient], [weight]))


def test_a_gradient_that_cannot_travel_is_refused():
    for kind, text in ranks(complex_worker, 2):
        assert kind == "TypeError", text
        assert "RK403" in text
        assert "complex64" in text
