"""Batch normalization over all ranks on torch and JAX, apart from `fit`'s features."""

from __future__ import annotations

import numpy as np
import pytest
from engines.back_ends.test_fit_failures import (
    assert_equal_on_all,
    data_of,
    message_of,
    state_of,
)
from support.back_ends import BACK_END, begin, needs_back_end, ranks

needs_back_end()

pytestmark = [pytest.mark.engines, pytest.mark.timeout(180)]

ROWS = 6  # Of each rank.


def rows_of(rank, far):
    """Of two channels, of which the numbers of the second are far from 0."""
    numbers = np.random.default_rng(rank)
    x = numbers.normal(size=(ROWS + rank, 2)) * [1.0, 0.5] + [rank, far]
    return x.astype("float32")


def gradients_of(layer, x, of_each):
    """What it gives, the gradient of a weighted sum of that, and its statistics."""
    if BACK_END == "torch":
        import torch

        given = torch.tensor(x, requires_grad=True)
        result = layer(given, training=True)
        (result * torch.tensor(of_each)).sum().backward()
        statistics = [v.numpy() for v in layer.non_trainable_variables]
        return result.detach().numpy(), given.grad.numpy(), statistics
    import jax

    layer.build(x.shape)

    def total(given):
        state = [
            [variable.value for variable in variables]
            for variables in (layer.trainable_variables, layer.non_trainable_variables)
        ]
        result, new = layer.stateless_call(*state, given, training=True)
        return (result * of_each).sum(), (result, new)

    gradients, (result, new) = jax.grad(total, has_aux=True)(x)
    return np.asarray(result), np.asarray(gradients), list(map(np.asarray, new))


def alone_worker(ranks_of_set, far):
    """One process with the batches of some ranks, in 64 bits."""
    x = np.concatenate([rows_of(rank, far) for rank in ranks_of_set]).astype("float64")
    of_each = np.cos(np.arange(x.size)).reshape(x.shape)
    mean, deviation = x.mean(0), np.sqrt(x.var(0) + 1e-3)
    normal = (x - mean) / deviation
    products = (of_each * normal).mean(0)
    gradients = (of_each - of_each.mean(0) - normal * products) / deviation
    return normal, gradients


def own_loop_worker(ranks_of_set, far):
    ring = begin()
    process_set = None
    if len(ranks_of_set) < ring.size():
        process_set = ring.add_process_set(ranks_of_set)
    if ring.rank() not in ranks_of_set:
        return None
    layer = ring.layers.SyncBatchNormalization(process_set=process_set)
    rows = [len(rows_of(rank, far)) for rank in ranks_of_set]
    position = ranks_of_set.index(ring.rank())
    first = sum(rows[:position])
    x = rows_of(ring.rank(), far)
    of_each = np.cos(np.arange(first * 2, first * 2 + x.size)).reshape(x.shape)
    return gradients_of(layer, x, of_each.astype("float32"))


@pytest.mark.parametrize("far", [0.0, 3000.0])
@pytest.mark.parametrize("ranks_of_set", [[0, 1, 2], [0, 2]], ids=["all", "two"])
def test_moments_are_those_of_all_batches(ranks_of_set, far):
    found = ranks(own_loop_worker, 3, ranks_of_set, far)

    normal, gradients = alone_worker(ranks_of_set, far)
    there = [found[rank] for rank in ranks_of_set]
    # In 32 bits a number of 3000 has three digits behind the point.
    close = {"atol": 1e-5 if far == 0.0 else 2e-3}
    got = np.concatenate([result for result, _, _ in there])
    np.testing.assert_allclose(got, normal, **close)
    got = np.concatenate([own for _, own, _ in there])
    np.testing.assert_allclose(got, gradients, **close)
    for _, _, statistics in there:
        for one, other in zip(statistics, there[0][2], strict=True):
            np.testing.assert_array_equal(one, other)


def penalty_worker():
    """The gradient of a gradient, of a batch of which each rank has a part."""
    ring = begin()
    import keras

    mine = range(3) if ring.size() == 1 else [ring.rank()]
    x = np.concatenate([rows_of(rank, 0.0) for rank in mine])
    layer = keras.layers.BatchNormalization()
    if ring.size() > 1:
        layer = ring.layers.SyncBatchNormalization()
    layer.build(x.shape)
    if BACK_END == "torch":
        import torch

        given = torch.tensor(x, requires_grad=True)
        total = (layer(given, training=True) ** 3).sum()
        (first,) = torch.autograd.grad(total, given, create_graph=True)
        (first**3).sum().backward()
        return given.grad.numpy()
    import jax

    variables = layer.trainable_variables, layer.non_trainable_variables

    def total(given):
        state = [[variable.value for variable in group] for group in variables]
        result, _ = layer.stateless_call(*state, given, training=True)
        return (result**3).sum()

    return np.asarray(jax.grad(lambda given: (jax.grad(total)(given) ** 3).sum())(x))


def test_gradients_of_gradients_are_those_of_one_process():
    (expected,) = ranks(penalty_worker, 1)

    found = np.concatenate(ranks(penalty_worker, 3))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def part_worker():
    """A part of a model that has trained becomes synchronized."""
    ring = begin()
    import keras

    part = keras.Sequential(
        [keras.Input((4,)), keras.layers.BatchNormalization(momentum=0.0)]
    )
    model = keras.Sequential([keras.Input((4,)), part])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    x = np.full((8, 4), float(ring.rank()), "float32")
    model.fit(x, x, batch_size=4, verbose=0)
    ring.layers.synchronize_batch_normalization(part)
    model.fit(x, x, batch_size=4, verbose=0)
    return [np.asarray(v.numpy()) for v in model.non_trainable_variables]


def test_a_part_of_a_traced_model_is_synchronized():
    for mean, variance in ranks(part_worker, 2):
        np.testing.assert_allclose(mean, 0.5)
        np.testing.assert_allclose(variance, 0.25)


def files_worker(folder):
    """A copy is a layer of Keras's."""
    ring = begin()
    import keras

    model = keras.Sequential(
        [
            keras.Input((4,)),
            ring.layers.SyncBatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    x, y = data_of(ring.rank())
    model.fit(x, y, epochs=2, verbose=0)
    path = f"{folder}/{ring.rank()}.keras"
    model.save(path)
    copies = [keras.models.load_model(path, compile=False)]
    copies.append(keras.models.clone_model(model))
    copies[-1].set_weights(model.get_weights())
    found = []
    for copy in copies:
        assert ring.layers.synchronize_batch_normalization(copy) == 1
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
        copy.compile(optimizer, loss="mse")
        found.append([copy.fit(x, y, shuffle=False, verbose=0).history, copy])
    expected = model.fit(x, y, shuffle=False, verbose=0).history
    for history, copy in found:
        assert history == expected
        for one, other in zip(copy.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    return path


def test_copies_are_made_synchronized_again(tmp_path):
    found = ranks(files_worker, 2, str(tmp_path))

    assert len(found) == 2


def later_worker():
    """The layers become synchronized between two fits."""
    ring = begin()
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    x = np.full((8, 4), float(ring.rank()), "float32")
    model.fit(x, x, batch_size=4, verbose=0)
    before = [np.asarray(v.numpy()) for v in model.non_trainable_variables]
    ring.layers.synchronize_batch_normalization(model)
    model.fit(x, x, batch_size=4, verbose=0)
    after = [np.asarray(v.numpy()) for v in model.non_trainable_variables]
    return before[1], after[1]


def test_a_model_that_was_traced_is_traced_anew():
    # Each rank's numbers are all alike; those of both have a variance of 0.25.
    for before, after in ranks(later_worker, 2):
        momentum = 0.99
        expected = before * momentum**2 + 0.25 * (1 - momentum**2)
        np.testing.assert_allclose(after, expected, rtol=1e-5)


def failing_worker(has_own_set):
    """Rank 1 fails between two synchronized layers, which then wait for it."""
    ring = begin()
    import keras

    process_set = None
    if has_own_set:
        sets = [ring.add_process_set([0, 1]), ring.add_process_set([2])]
        process_set = sets[ring.rank() // 2]

    class Fails(keras.layers.Layer):
        steps = 0
        is_broken = False

        def call(self, x, training=False):
            if training:
                self.steps += 1
            if self.is_broken and self.steps == 4:
                raise OSError("no disk in a layer")
            return x

    fails = Fails()
    model = keras.Sequential(
        [
            keras.Input((4,)),
            ring.layers.SyncBatchNormalization(),
            fails,
            keras.layers.Dense(3),
            ring.layers.SyncBatchNormalization(process_set=process_set),
            keras.layers.Dense(1),
        ]
    )
    optimizer = ring.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, loss="mse", run_eagerly=True)
    x, y = data_of(ring.rank())
    fails.is_broken, fails.steps = ring.rank() == 1, 0
    told = message_of(lambda: model.fit(x, y, batch_size=4, epochs=2, verbose=0))
    fails.is_broken = False
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0).history
    return told, history, state_of(model)


@pytest.mark.parametrize("has_own_set", [False, True])
def test_all_hear_of_one_that_fails_between_two_layers(has_own_set):
    found = ranks(failing_worker, 3, has_own_set, timeout_s=120)

    assert found[1][0][0] == "OSError"
    for rank in (0, 2):
        kind, text = found[rank][0]
        assert kind == "RankMismatchError", text
        assert "its fit() raised OSError" in text and "ank 1" in text
    assert len({str(history) for _, history, _ in found}) == 1
    assert_equal_on_all([state for _, _, state in found])


def one_rank_worker(what):
    """Rank 1 alone has a layer that is synchronized, or one that trains."""
    ring = begin()
    import keras

    normalized = ring.layers.SyncBatchNormalization
    if what == "synchronizes" and ring.rank() == 0:
        normalized = keras.layers.BatchNormalization
    model = keras.Sequential([keras.Input((4,)), normalized(), keras.layers.Dense(1)])
    model.layers[0].trainable = what == "synchronizes" or ring.rank() == 1
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    return message_of(lambda: model.fit(*data_of(ring.rank()), verbose=0))


@pytest.mark.parametrize("what", ["synchronizes", "trains"])
def test_one_rank_alone_is_an_error(what):
    for kind, text in ranks(one_rank_worker, 2, what):
        assert kind == "RankMismatchError"
        assert "synchronized batch normalizations" in text
