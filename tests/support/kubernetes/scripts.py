"""What pods of tests run."""

# The weights are the same on all ranks in the end, or it fails.
TRAIN = """
import hashlib
import keras, numpy as np
import ring_keras as ring

ring.init()
keras.utils.set_random_seed(ring.rank())
layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
x = np.random.default_rng(ring.rank()).normal(size=(64, 4)).astype("float32")
model.fit(x, x.sum(1), batch_size=16, epochs=2, verbose=0,
          callbacks=[ring.callbacks.BroadcastGlobalVariables()])
weights = hashlib.sha256(b"".join(map(np.ndarray.tobytes, model.get_weights())))
digests = ring.allgather_object(weights.hexdigest())
assert len(set(digests)) == 1, digests
print("trained by", ring.size(), "on", ring.cross_size(), "pods", flush=True)
ring.shutdown()
"""
