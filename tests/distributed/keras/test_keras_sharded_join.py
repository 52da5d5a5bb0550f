"""A divided state where ranks have different numbers of batches."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks
from support.sharded_models import MAKERS, build, initialized

import ring_keras as ring
from ring_keras import _libraries
from ring_keras.ops.shards import shard_of

BATCH = training.BATCH


def own_data(is_length_known: bool) -> tf.data.Dataset:
    """The first rank has no batch at all, the last one the most."""
    rank = ring.rank()
    own = training.dataset().skip(100 * rank).take(11 * rank).batch(BATCH)
    if not is_length_known:
        own = own.filter(lambda x, y: True)
    return ring.data.join(own)


def divided(name: str, shard_state: bool, **options: Any) -> keras.Model:
    model = build(1 + ring.rank())
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
    return training.compile_model(model, optimizer, **options)


def fit(name: str, shard_state: bool, known: bool, **options: Any) -> keras.Model:
    model = divided(name, shard_state, **options)
    # Without a divided state, TensorFlow runs one decay more where unknown data end.
    model.fit(own_data(known or not shard_state), verbose=0)
    return model


def loop(name: str, shard_state: bool, known: bool, **options: Any) -> keras.Model:
    model = divided(name, shard_state)
    optimizer = model.optimizer
    ring.broadcast_variables(model.weights)
    optimizer.build(model.trainable_variables)

    @tf.function(reduce_retracing=True, **options)
    def step(batch: Any) -> None:
        with ring.data.weighted_step(batch, model=model) as ((x, y), _):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, model(x)))
                if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                    loss = optimizer.scale_loss(loss)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)

    for batch in own_data(known):
        step(batch)
    return model


WAYS = {"fit": fit, "loop": loop}


def compare_worker(
    way: str, names: list[str], known: bool, options: dict[str, Any]
) -> list[bytes]:
    found = []
    for name in names:
        for shard_state in (False, True):
            model = WAYS[way](name, shard_state, known, **options)
            found.append(training.as_bytes(model.get_weights()))
        shards = list(map(shard_of, model.optimizer.variables))
        owners = {piece.owner for shard in shards if shard for piece in shard.pieces}
        assert len(owners) == ring.size()
        assert found[-1] == found[-2], name
        assert found[-1] != training.as_bytes(build(1).get_weights())
    return found


NAMES = ["accumulation", "clipnorm", "loss_scaled", "loss_scaled_accumulation"]


@pytest.mark.parametrize(
    ("size", "way", "names", "known", "options"),
    [
        (2, "fit", ["accumulation"], False, {}),
        pytest.param(3, "fit", NAMES, True, {}, marks=pytest.mark.slow),
        pytest.param(
            2, "fit", NAMES[1:2], True, {"jit_compile": True}, marks=pytest.mark.slow
        ),
        pytest.param(
            2, "fit", NAMES, True, {"run_eagerly": True}, marks=pytest.mark.slow
        ),
        pytest.param(2, "loop", NAMES, False, {}, marks=pytest.mark.slow),
        pytest.param(3, "loop", NAMES, True, {}, marks=pytest.mark.slow),
    ],
)
def test_a_rank_without_data_updates_its_part(
    rank_pool: Any,
    size: int,
    way: str,
    names: list[str],
    known: bool,
    options: dict[str, Any],
) -> None:
    if "jit_compile" in options and not _libraries.has_xla_kernels():
        pytest.skip("needs TensorFlow 2.20 or newer")
    results = rank_pool(size).run(compare_worker, args=(way, names, known, options))

    assert all(result == results[0] for result in results)


def train(name: str, steps: int, in_function: bool) -> tuple[list[bytes], str]:
    """Weights after each step, and the error that ended them."""
    model = divided(name, True)
    optimizer = model.optimizer
    ring.broadcast_variables(model.weights)
    if ring.rank() or not in_function:  # One begins without.
        optimizer.build(model.trainable_variables)
    x, y = training.arrays()

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, model(x)))
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                loss = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    if in_function:
        if steps:
            optimizer.build(model.trainable_variables)
        step = tf.function(step)
    found, error = [training.as_bytes(model.weights)], ""
    for number in range(steps):
        try:
            step(x[number : number + BATCH], y[number : number + BATCH])
        except Exception as caught:  # Of the collective, or of the trace.
            error = str(caught)
        found.append(training.as_bytes(model.weights))
        if error:
            break
    assert ring.join() >= 0  # Others' steps are over, too.
    return found, error


def join_worker(name: str, steps: list[int], in_function: bool) -> Any:
    found, error = train(name, steps[ring.rank()], in_function)
    assert ring.allreduce(1.0, "sum") == ring.size()
    return found, error


@pytest.mark.parametrize(
    ("name", "steps", "in_function"),
    [
        ("adam", [1, 3], False),
        pytest.param("sgd_without_state", [2, 0], True, marks=pytest.mark.slow),
        pytest.param("loss_scaled", [3, 1], True, marks=pytest.mark.slow),
        pytest.param("accumulated_momentum", [1, 5], False, marks=pytest.mark.slow),
        pytest.param("accumulated_momentum", [6, 2], True, marks=pytest.mark.slow),
        pytest.param("adam", [2, 2], True, marks=pytest.mark.slow),
    ],
)
def test_no_rank_trains_on_without_one_that_has_joined(
    name: str, steps: list[int], in_function: bool
) -> None:
    args = (join_worker, name, steps, in_function)
    results = run_ranks(initialized, 2, args=args, timeout_s=120)

    for (weights, error), planned in zip(results, steps, strict=True):
        if planned == min(steps):
            assert not error
            assert len(weights) == planned + 1
        else:
            other = steps.index(min(steps))
            assert f"[RK830] rank {other} has run out of data" in error, error
            assert "shard_state=True" in error and "ring_keras.data.join" in error
            assert weights[-1] == weights[-2]  # The refused step has changed nothing.
    common = min(steps)  # Constraints are applied in each pass, also without an update.
    assert results[0][0][common] == results[1][0][common]


def left_alone_worker() -> str:
    """The rank that has data ends with its error; the other one waits for it."""
    model = divided("adam", True)
    model.optimizer.build(model.trainable_variables)
    gradients = [tf.ones(v.shape) for v in model.trainable_variables]
    model.optimizer.apply(gradients)
    if ring.rank() == 0:
        with pytest.raises(ring.PeerLostError) as caught:
            ring.join()
        return str(caught.value)
    with pytest.raises(ring.RankMismatchError) as caught:
        model.optimizer.apply(gradients)
    ring.shutdown()
    return str(caught.value)


@pytest.mark.slow
def test_the_rank_that_has_joined_is_told_as_well() -> None:
    for text in run_ranks(initialized, 2, args=(left_alone_worker,)):
        assert "[RK830] rank 0 has run out of data" in text


def others_worker() -> None:
    """What is no step of training goes on, and so does what was divided before."""
    model = divided("adam", True)
    model.optimizer.build(model.trainable_variables)
    for _ in range(1 + ring.rank()):
        total = ring.allreduce(1.0, "sum", name="of/evaluation")
    assert float(total) == 2 - ring.rank()
    assert ring.join() == 1


def refused_again_worker() -> None:
    """Refused steps leave nothing behind for what comes after the join."""
    idle = divided("adam", True)  # Nobody trains by it.
    for turn in range(3):
        train_plainly(1 + (ring.rank() + turn) % 2)
        alone = (ring.rank() + turn) % 2
        _, error = train("adam", 1 + 2 * alone, in_function=False)
        assert ("[RK830]" in error) == bool(alone), error
        _, error = train("sgd", 2, in_function=False)
        assert not error, error
    ring.shutdown()
    ring.init()
    _, error = train("adam", ring.rank(), in_function=False)
    assert ("[RK830] rank 0" in error) == bool(ring.rank()), error
    assert idle.trainable_variables


def train_plainly(steps: int) -> None:
    """By an optimizer that all ranks have the whole state of, as far as data go."""
    model = divided("adam", False)
    ring.broadcast_variables(model.weights)
    model.optimizer.build(model.trainable_variables)
    for _ in range(steps):
        model.optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables])
    ring.join()


def test_others_train_before_and_after_a_refused_step() -> None:
    run_ranks(initialized, 2, args=(refused_again_worker,), timeout_s=120)


def test_what_is_no_step_goes_on(rank_pool: Any) -> None:
    rank_pool(2).run(others_worker)
