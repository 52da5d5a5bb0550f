"""float8: the scales of casts are the same on every rank."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from support import training

import ring_keras as ring


def _network(seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.quantize("float8")
    return model


def float8_worker(accumulate):
    size, rank = ring.size(), ring.rank()
    steps = 2 if accumulate else None
    data = training.dataset(4 * training.BATCH * size)
    model, alone = _network(1 + rank), _network(1)
    sgd = keras.optimizers.SGD
    training.compile_model(
        model,
        ring.DistributedOptimizer(sgd(0.1, gradient_accumulation_steps=steps)),
    )
    training.compile_model(alone, sgd(0.1, gradient_accumulation_steps=steps))
    training.fit(
        model,
        ring.data.shard(data),
        training.BATCH,
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    )
    training.fit(alone, data, training.BATCH * size)
    seen = "inputs_amax_history"
    return (
        training.as_bytes(model.get_weights()),
        [np.asarray(getattr(m.layers[0], seen)) for m in (model, alone)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [False, True])
def test_scales_are_those_of_the_global_batch(rank_pool, accumulate):
    (first, (ours, theirs)), (second, _) = rank_pool(2).run(
        float8_worker, args=(accumulate,)
    )

    assert first == second
    np.testing.assert_array_equal(ours, theirs)
    assert ours.max() > 0
