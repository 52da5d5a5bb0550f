"""Trains on two workers of Ray Train.

    pip install 'ring-keras[ray]'
    python examples/ray_digits.py

With `RAY_ADDRESS=HOST:6379` the workers are those of a running cluster.
"""

import functools
from pathlib import Path

import digits_training
import ray
import ray.train
from absl import app, flags

from ring_keras.ray import RingTrainer

FLAGS = flags.FLAGS
flags.DEFINE_integer("workers", 2, "How many ranks.", lower_bound=1)


def main(_: list[str]) -> None:
    """Has Ray Train do it."""
    # The workers of a cluster do not have this folder's files.
    ray.cloudpickle.register_pickle_by_value(digits_training)
    # Workers have a working directory of their own.
    output = str(Path(FLAGS.output).absolute())
    result = RingTrainer(
        functools.partial(digits_training.train, FLAGS.epochs, output),
        scaling_config=ray.train.ScalingConfig(num_workers=FLAGS.workers),
    ).fit()
    accuracy, _ = result.return_value  # Rank 0's.
    print(f"test accuracy {accuracy:.2%} on {FLAGS.workers} rank(s)")


if __name__ == "__main__":
    app.run(main)
