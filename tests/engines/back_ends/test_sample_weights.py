"""Sample weights of any type on torch and JAX, where a loss is divided by their sum."""

from __future__ import annotations

import numpy as np
import pytest
from support.back_ends import begin, needs_back_end, ranks

needs_back_end()

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

STEPS, ROWS = 3, 12
OF_RANKS = (slice(0, 8), slice(8, 12))
# Of eight rows they add up to more than 16 bits have.
LARGEST = {"float16": 20000, "int32": 5, "bool": 1}


def worker(alone):
    """The weights of the model, for each type of sample weights."""
    ring = None if alone else begin()
    import keras

    class Batches(keras.utils.PyDataset):
        def __init__(self, dtype):
            super().__init__()
            self.dtype = dtype

        def __len__(self):
            return STEPS

        def __getitem__(self, step):
            numbers = np.random.default_rng(step)
            x = numbers.normal(size=(ROWS, 4)).astype("float32")
            weights = numbers.uniform(0.5, 1, ROWS) * LARGEST[self.dtype]
            weights[numbers.permutation(ROWS)[:5]] = 0.0
            own = slice(None) if ring is None else OF_RANKS[ring.rank()]
            y = x.sum(1, keepdims=True) ** 2
            return x[own], y[own], weights[own].astype(self.dtype)

    found = {}
    for dtype in LARGEST:
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01)
        if ring is not None:
            optimizer = ring.DistributedOptimizer(optimizer)
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        model.compile(optimizer, loss)
        model.fit(Batches(dtype), epochs=2, shuffle=False, verbose=0)
        found[dtype] = [np.array(weight.numpy()) for weight in model.weights]
    return found


@pytest.fixture(scope="module")
def alone():
    return ranks(worker, 1, True, timeout_s=120)[0]


@pytest.fixture(scope="module")
def everyone():
    return ranks(worker, 2, False, timeout_s=120)


@pytest.mark.parametrize("dtype", LARGEST)
def test_weights_of_any_type_count_as_in_one_process(dtype, alone, everyone):
    for found in everyone:
        for one, other in zip(found[dtype], alone[dtype], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
