"""Ranks with different numbers of batches on torch and JAX beside one process."""

from __future__ import annotations

import numpy as np
import pytest
from support.back_ends import begin, needs_back_end, ranks
from support.feature_fits import NORMALIZED
from support.joined_fits import FITS, trained

needs_back_end()

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

WIDE = {"JAX_ENABLE_X64": "1"}
# Losses of Keras are of 32 bits on torch.
CLOSE = {"rtol": 1e-6, "atol": 1e-7}
# docs/keras.md, "What is not exact".
REPORTED_OTHERWISE = ("summed_loss", "weighted_mean", "normalized_summed")


def alone_worker(size):
    return {name: trained(name, size) for name in FITS}


def job_worker():
    ring = begin()
    return {name: trained(name, ring.size(), ring.rank()) for name in FITS}


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def size(request):
    return request.param


@pytest.fixture(scope="module")
def alone(size):
    return ranks(alone_worker, 1, size, env=WIDE, timeout_s=300)[0]


@pytest.fixture(scope="module")
def everyone(size):
    return ranks(job_worker, size, env=WIDE, timeout_s=600)


@pytest.mark.parametrize("name", FITS)
def test_a_rank_without_data_counts_for_nothing(name, alone, everyone):
    history, heard, weights = alone[name]
    close = NORMALIZED if name.startswith("normalized") else CLOSE
    for of_rank in everyone:
        got_history, got_heard, got = of_rank[name]
        assert got_heard[:-1] == heard[:-1] or name == "generator"
        assert got_heard == everyone[0][name][1]
        for one, other in zip(got, weights, strict=True):
            np.testing.assert_allclose(one, other, **close)
        for first, own in zip(everyone[0][name][2], got, strict=True):
            np.testing.assert_array_equal(first, own)
        assert got_history.keys() == history.keys()
        for key in () if name in REPORTED_OTHERWISE else history:
            np.testing.assert_allclose(got_history[key], history[key], rtol=1e-5)


def counting_worker():
    """A layer that counts its steps, of which rank 0 has one and rank 1 has two."""
    ring = begin()
    import keras

    class CountsSteps(keras.layers.Layer):
        def build(self, shape):
            self.count = self.add_weight(
                shape=(), dtype="int32", initializer="zeros", trainable=False
            )

        def call(self, x):
            self.count.assign_add(1)
            return x

    model = keras.Sequential([keras.Input((3,)), CountsSteps(), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    rows = 4 * (1 + ring.rank())
    x, y = np.ones((rows, 3), np.float32), np.ones((rows, 1), np.float32)
    with pytest.raises(ring.RankMismatchError) as caught:
        model.fit(*ring.data.join((x, y)), batch_size=4, verbose=0)
    return str(caught.value)


def test_what_counts_steps_differs_because_data_are_joined():
    for said in ranks(counting_worker, 2):
        assert "[RK325]" in said
        assert "These data are joined (ring_keras.data.join)" in said
