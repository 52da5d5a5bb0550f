"""What elastic states keep, and whose state ranks take."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.rank_pool import RankPools

import ring_keras as ring


def check_who_is_ahead_is_followed() -> None:
    state = ring.elastic.ObjectState(step=0, seen=[])
    state.sync()
    state.step, state.seen = 1, [1]
    if ring.rank() == 1:
        # As if the others had been interrupted before they had committed this step.
        state.save()
        state._commits += 1
    else:
        state.restore()
        assert (state.step, state.seen) == (0, [])
    state.sync()
    assert (state.step, state.seen) == (1, [1])
    # It is theirs now, so nobody is ahead.
    state.step = 2 + ring.rank()
    state.sync()
    assert state.step == 2
    state.step = 5
    state.restore()
    assert state.step == 2


def test_a_state_comes_from_whoever_has_committed_most(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_who_is_ahead_is_followed)


def check_keras_state() -> None:
    keras.utils.set_random_seed(ring.rank())
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(3),
            keras.layers.BatchNormalization(),
        ]
    )
    optimizer = keras.optimizers.Adam()
    state = ring.elastic.KerasState(model, optimizer, step=ring.rank())
    state.sync()
    variables = [*model.weights, *optimizer.variables]
    for values in ring.allgather_object([np.array(v) for v in variables]):
        for mine, theirs in zip(variables, values, strict=True):
            np.testing.assert_array_equal(np.array(mine), theirs)
    assert state.step == 0
    committed = [np.array(variable) for variable in variables]

    optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables])
    state.step = 7
    state.restore()

    for variable, value in zip(variables, committed, strict=True):
        np.testing.assert_array_equal(np.array(variable), value)
    assert (state.step, int(optimizer.iterations.numpy())) == (0, 0)


def test_a_model_and_its_optimizer_are_kept_and_given(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_keras_state)


def check_what_is_owed() -> None:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    optimizer = ring.DiLoCo("sgd", sync_every=1, wire="int8")
    model.compile(optimizer)
    optimizer.build(model.trainable_variables)
    state = ring.elastic.KerasState(model)
    state.sync()
    draws = np.random.default_rng(ring.rank())

    def step() -> list[np.ndarray]:
        shapes = [v.shape for v in model.trainable_variables]
        optimizer.apply([tf.constant(draws.normal(size=s), tf.float32) for s in shapes])
        return [np.array(one) for one in optimizer.residuals]

    committed = step()
    assert any(one.any() for one in committed)
    state.commit()
    lost = step()
    assert any((a != b).any() for a, b in zip(committed, lost, strict=True))
    state.restore()

    for one, value in zip(optimizer.residuals, committed, strict=True):
        np.testing.assert_array_equal(np.array(one), value)


def test_what_is_owed_to_meetings_is_kept(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_what_is_owed)


def check_without_a_launcher_that_goes_on() -> None:
    calls = []
    state = ring.elastic.ObjectState()

    @ring.elastic.run
    def train(state: ring.elastic.ObjectState) -> None:
        calls.append(1)
        state.commit()
        raise ring.PeerLostError("a rank was lost")

    with pytest.raises(ring.PeerLostError, match="a rank was lost"):
        train(state)
    assert len(calls) == 1


def test_where_ranks_cannot_change_errors_pass(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_without_a_launcher_that_goes_on)


def test_what_a_state_cannot_hold_is_said() -> None:
    with pytest.raises(ValueError, match="attribute 'commit' of its own"):
        ring.elastic.ObjectState(commit=1)
    with pytest.raises(ValueError, match="needs a model that is built"):
        ring.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
