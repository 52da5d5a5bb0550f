"""A small training, the same on all ranks: what a release is tried with."""

import keras
import numpy as np

import ring_keras as ring

ring.init()
keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x = rng.normal(size=(2048, 16)).astype("float32")
y = (x @ rng.normal(size=16) > 0).astype("float32")
rank, size = ring.rank(), ring.size()
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(1, "sigmoid")]
)
model.compile(
    optimizer=ring.DistributedOptimizer(keras.optimizers.Adam(0.01)),
    loss="binary_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(x[rank::size], y[rank::size], batch_size=64, epochs=5, verbose=2)
assert history.history["accuracy"][-1] > 0.9, history.history
weights = np.concatenate([w.ravel() for w in model.get_weights()])
assert len(set(ring.allgather_object(weights.tobytes()))) == 1
print(
    f"rank {rank} of {size} on {keras.backend.backend()}: "
    "trained, and all ranks have the same weights"
)
