"""A generative adversarial network with a custom `train_step`.

    ringrun -np 2 python examples/gan.py

Two networks, each with an optimizer, play against each other: one generates points, and
the other distinguishes them from points on a ring. `train_step` does not mention ranks:
the two optimizers are distributed, and average their gradients over the ranks.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 40, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Points per step and rank.", lower_bound=1)

COUNT = 4096
NOISE = 8
RADIUS = 2.0


def points() -> np.ndarray:
    """Points near a ring around the origin."""
    generator = np.random.default_rng(0)
    angle = generator.uniform(0, 2 * np.pi, COUNT)
    radius = generator.normal(RADIUS, 0.1, COUNT)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return (radius[:, None] * circle).astype(np.float32)


def dense(inputs: int, outputs: int) -> keras.Model:
    """A small network."""
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(64, activation="leaky_relu"),
            keras.layers.Dense(64, activation="leaky_relu"),
            keras.layers.Dense(outputs),
        ]
    )


class Gan(keras.Model):
    """Generator and discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = dense(NOISE, 2)
        self.discriminator = dense(2, 1)
        # Each rank draws numbers of its own.
        self.seeds = keras.random.SeedGenerator(ring.rank())
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        self.generator_loss = keras.metrics.Mean(name="generator_loss")
        self.discriminator_loss = keras.metrics.Mean(name="discriminator_loss")

    def compile(
        self,
        generator_optimizer: keras.optimizers.Optimizer,
        discriminator_optimizer: keras.optimizers.Optimizer,
    ) -> None:
        """Takes an optimizer for each network."""
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer

    def sample(self, count: int | tf.Tensor) -> tf.Tensor:
        """Made-up points."""
        noise = keras.random.normal((count, NOISE), seed=self.seeds)
        return self.generator(noise)

    def train_step(self, real: tf.Tensor) -> dict[str, Any]:
        """One step of both networks."""
        count = tf.shape(real)[0]
        with tf.GradientTape() as generator_tape, tf.GradientTape() as tape:
            made_up = self.sample(count)
            real_logits = self.discriminator(real)
            made_up_logits = self.discriminator(made_up)
            generator_loss = self.loss_of(tf.ones((count, 1)), made_up_logits)
            discriminator_loss = self.loss_of(
                tf.ones((count, 1)), real_logits
            ) + self.loss_of(tf.zeros((count, 1)), made_up_logits)
        for optimizer, model, used_tape, loss in (
            (self.generator_optimizer, self.generator, generator_tape, generator_loss),
            (
                self.discriminator_optimizer,
                self.discriminator,
                tape,
                discriminator_loss,
            ),
        ):
            gradients = used_tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
        self.generator_loss.update_state(generator_loss, sample_weight=count)
        self.discriminator_loss.update_state(discriminator_loss, sample_weight=count)
        return {metric.name: metric.result() for metric in self.metrics}


def main(_: list[str]) -> None:
    """Trains on all ranks."""
    ring.init()
    train = ring.data.shard(tf.data.Dataset.from_tensor_slices(points()), seed=1)
    model = Gan()
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.Adam(1e-3, beta_1=0.5)),
        ring.DistributedOptimizer(keras.optimizers.Adam(1e-3, beta_1=0.5)),
    )
    model.fit(
        train.batch(FLAGS.batch_size),
        epochs=FLAGS.epochs,
        shuffle=False,
        verbose=2 if ring.rank() == 0 else 0,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
        ],
    )

    # The same noise on every rank, so the same points, if the weights are the same.
    noise = tf.random.stateless_normal((2000, NOISE), seed=(1, 2))
    radius = tf.norm(model.generator(noise), axis=1)
    print(
        f"made-up points are {float(tf.reduce_mean(radius)):.4f} from the origin, "
        f"give or take {float(tf.math.reduce_std(radius)):.4f}; real ones {RADIUS}"
    )


if __name__ == "__main__":
    app.run(main)
