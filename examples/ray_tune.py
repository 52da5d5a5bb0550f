"""Finds a learning rate with Ray Tune; each trial is a job of two ranks.

    pip install 'ring-keras[ray]' 'ray[tune]'
    python examples/ray_tune.py

A trial takes a CPU for itself and one for each rank, so `--concurrent` trials at a time
need three times that number of CPUs.
"""

import functools

import digits_training
import ray
import ray.train
import ray.tune
from absl import app, flags

from ring_keras.ray import RingTrainer

# A function travels with what it names, and this module is not on the workers.
train = digits_training.train

FLAGS = flags.FLAGS
flags.DEFINE_integer("concurrent", 1, "Trials at a time.", lower_bound=1)


def try_out(config: dict[str, float]) -> None:
    """One trial."""
    directory = ray.tune.get_context().get_trial_dir()
    result = RingTrainer(
        functools.partial(
            train, int(config["epochs"]), learning_rate=config["learning_rate"]
        ),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(name="training", storage_path=directory),
    ).fit()
    accuracy, _ = result.return_value  # Rank 0's.
    ray.tune.report({"accuracy": accuracy})


def main(_: list[str]) -> None:
    """Tries two learning rates."""
    # The workers of a cluster do not have this folder's files.
    ray.cloudpickle.register_pickle_by_value(digits_training)
    results = ray.tune.Tuner(
        try_out,
        param_space={
            "learning_rate": ray.tune.grid_search([5e-5, 5e-3]),
            "epochs": FLAGS.epochs,
        },
        tune_config=ray.tune.TuneConfig(
            metric="accuracy", mode="max", max_concurrent_trials=FLAGS.concurrent
        ),
    ).fit()
    for result in results:
        rate, accuracy = result.config["learning_rate"], result.metrics["accuracy"]
        print(f"learning rate {rate:g}: test accuracy {accuracy:.2%}")
    print(f"best: {results.get_best_result().config['learning_rate']:g}")


if __name__ == "__main__":
    app.run(main)
