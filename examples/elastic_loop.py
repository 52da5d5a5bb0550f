"""A training loop that continues when ranks are lost or join.

    ringrun -np 3 --min-np 1 --max-np 3 -v python examples/elastic_loop.py

Kill any rank (`-v` shows the processes) and watch. Every step uses the same examples
for any number of ranks: each rank takes its part of the batch.
"""

import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 200, "Steps to train.", lower_bound=1)
flags.DEFINE_float("pause", 0.05, "Seconds between steps, to kill ranks in.")

BATCH_SIZE = 60


def batch_of(step: int) -> tuple[np.ndarray, np.ndarray]:
    """This rank's part of a step's batch, and what the model shall learn of it."""
    x = np.random.default_rng(step).normal(size=(BATCH_SIZE, 4)).astype(np.float32)
    x = x[ring.rank() :: ring.size()]
    return x, x @ np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)


@ring.elastic.run
def train(state: ring.elastic.KerasState) -> None:
    """Begins where the state says; is called again after each change."""

    @tf.function  # Traced again: the one before was for other ranks.
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with ring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((state.model(x, training=True) - y) ** 2)
        weights = state.model.trainable_variables
        state.optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    print(f"step {state.step}: rank {ring.rank()} of {ring.size()}")
    while state.step < FLAGS.steps:
        train_step(*batch_of(state.step))
        state.step += 1
        state.commit()
        time.sleep(FLAGS.pause)


def main(_: list[str]) -> None:
    """Trains on all ranks."""
    ring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    state = ring.elastic.KerasState(model, keras.optimizers.Adam(0.05), step=0)
    train(state)
    steps = int(state.optimizer.iterations.numpy())
    error = float(np.abs(model.weights[0].numpy()[:, 0] - [1, 2, 3, 4]).max())
    print(f"{steps} steps, weights differ by {error:.3f} on rank {ring.rank()}")


if __name__ == "__main__":
    app.run(main)
