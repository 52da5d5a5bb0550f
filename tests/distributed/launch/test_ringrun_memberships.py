"""Ranks under ringrun may leave the job and join the next."""

import pytest


@pytest.mark.slow  # test_lifecycle.py does so without ringrun.
def test_three_jobs_under_ringrun(ringrun):
    script = """
import keras, numpy as np
import ring_keras as ring
x = np.ones((4, 2), np.float32)
for _ in range(3):
    ring.init()
    keras.utils.set_random_seed(ring.rank())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(x, x[:, :1], batch_size=2, verbose=0, shuffle=False,
              callbacks=[ring.callbacks.BroadcastGlobalVariables()])
    weights = ring.allgather_object(model.get_weights())
    assert all((a == b).all() for a, b in zip(*weights))
    ring.shutdown()
print("trained three times")
"""
    finished = ringrun.run(script, size=2)

    assert finished.returncode == 0, finished.stderr.decode()
    assert finished.stdout.count(b"trained three times") == 2
