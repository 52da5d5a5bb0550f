"""What a model's own code makes of a compiled loss on torch and JAX."""

from __future__ import annotations

import numpy as np
import pytest
from support.back_ends import begin, needs_back_end, ranks
from support.log_texts import LogTexts

needs_back_end()

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

STEPS, ROWS = 3, 8
OF_RANKS = (slice(0, 6), slice(6, 8))  # Uneven.


def worker(reduction, reduce, alone):
    """Weights, and what ring_keras says meanwhile."""
    ring = None if alone else begin()
    import keras

    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, *others, **kwargs):
            return getattr(keras.ops, reduce)(self.loss(y, y_pred))

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return STEPS

        def __getitem__(self, step):
            x = np.random.default_rng(step).normal(size=(ROWS, 4)).astype("float32")
            own = slice(None) if ring is None else OF_RANKS[ring.rank()]
            return x[own], x[own].sum(1, keepdims=True) ** 2

    keras.utils.set_random_seed(5)
    inputs = keras.Input((4,))
    model = Own(inputs, keras.layers.Dense(1)(inputs))
    optimizer = keras.optimizers.SGD(0.01)
    if ring is not None:
        optimizer = ring.DistributedOptimizer(optimizer)
    model.compile(optimizer, keras.losses.MeanSquaredError(reduction=reduction))
    with LogTexts() as texts:
        model.fit(Batches(), epochs=2, shuffle=False, verbose=0)
    weights = [np.array(weight.numpy()) for weight in model.weights]
    return weights, [text for text in texts if "RK603" in text]


@pytest.mark.parametrize(
    ("reduction", "reduce"), [(None, "mean"), ("none", "mean"), ("sum", "sum")]
)
def test_it_counts_as_what_it_is(reduction, reduce):
    ((alone, _),) = ranks(worker, 1, reduction, reduce, True, timeout_s=120)
    found = ranks(worker, 2, reduction, reduce, False, timeout_s=120)

    for weights, _ in found:
        for one, other in zip(weights, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    # Of a sum it cannot be seen whether its mean has been taken.
    told = [len(texts) for _, texts in found]
    assert told == [int(reduction == "sum"), 0]
