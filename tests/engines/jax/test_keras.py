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


@pytest.mark.parametrize("chosen", [None, "2"])
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
        env=env | {"KERAS_BACKEND": "jax"} | ({names[2]: chosen} if chosen else {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    expected = chosen or max(1, len(os.sched_getaffinity(0)) // 2)
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
    model.train_on_batch(x[:6], y[:6])
    is_anew = model.train_function is not function
    model.fit(x, y, **fit)
    return is_kept, between, is_stale and is_anew, state_of(model)


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

    differ = message_of(lambda: step(state(), x, y))
    ring.broadcast_variables([*model.variables, *optimizer.variables])
    before = [np.asarray(v) for v in model.weights]
    now = state()
    for first in range(0, 24, 6):
        _, now = step(now, x[first : first + 6], y[first : first + 6])
    return differ, before, [np.asarray(v) for v in now[0]]


def test_a_loop_of_ones_own_averages_too():
    found = ranks(own_loop_worker, 2)

    for differ, *_ in found:
        assert differ[0] == "RankMismatchError"
        assert differ[1].startswith("[RK663] before the first step of SGD")
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


def lost_values_worker():
    """A collective that fails inside of a compiled step takes the weights with it."""
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
    found = ranks(lost_values_worker, 2)

    for rank, (differ, shapes) in enumerate(found):
        assert differ[0] == "RankMismatchError"
        assert differ[1].startswith("[RK326] fit(): shapes of weights")
        assert shapes[0] == (4, 3 + rank)
